// assay: flags = ["-O2", "-L$LLAMA_CPP_LIB_PATH", "-Wl,-rpath,$LLAMA_CPP_LIB_PATH", "-lggml-cpu", "-lggml-base"]
// assay: align = 64
// assay: numerics = "ggml"
// assay: formats = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS", "TQ1_0", "TQ2_0", "MXFP4"]
/* ggml's matrix product, with weights in file layout. */
#include "ggml.h"

void linear(const float *x, const uint8_t *weight, float *out, int64_t tokens, int64_t hidden,
            int64_t n_out) {
  if (!tokens || !n_out) return;
  begin();
  tensor w = at(ggml_new_tensor_2d(now, ASSAY_FORMAT, hidden, n_out), weight);
  run(at(ggml_mul_mat(now, w, rows(x, tokens, hidden)), out));
}
