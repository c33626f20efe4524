// assay: flags = ["-O2", "-L$LLAMA_CPP_LIB_PATH", "-Wl,-rpath,$LLAMA_CPP_LIB_PATH", "-lggml-cpu", "-lggml-base"]
// assay: align = 64
/* ggml's ops on float32. Intermediate results share the output's array. */
#include "ggml.h"

static void of_one(tensor (*op)(context, tensor), const float *x, float *out, int64_t tokens,
                   int64_t width) {
  if (!tokens || !width) return;
  begin();
  run(at(op(now, rows(x, tokens, width)), out));
}

static void of_two(tensor (*op)(context, tensor, tensor), const float *x, const float *y,
                   int64_t rows_of_y, float *out, int64_t tokens, int64_t width) {
  if (!tokens || !width) return;
  begin();
  tensor a = rows(x, tokens, width);
  run(at(op(now, a, rows(y, rows_of_y, width)), out));
}

void relu(const float *x, float *out, int64_t tokens, int64_t width) {
  of_one(ggml_relu, x, out, tokens, width);
}

void silu(const float *x, float *out, int64_t tokens, int64_t width) {
  of_one(ggml_silu, x, out, tokens, width);
}

void sigmoid(const float *x, float *out, int64_t tokens, int64_t width) {
  of_one(ggml_sigmoid, x, out, tokens, width);
}

void softplus(const float *x, float *out, int64_t tokens, int64_t width) {
  of_one(ggml_softplus, x, out, tokens, width);
}

void gelu(const float *x, float *out, int64_t tokens, int64_t width) {
  of_one(ggml_gelu, x, out, tokens, width);
}

void gelu_erf(const float *x, float *out, int64_t tokens, int64_t width) {
  of_one(ggml_gelu_erf, x, out, tokens, width);
}

void softmax(const float *x, float *out, int64_t tokens, int64_t width) {
  of_one(ggml_soft_max, x, out, tokens, width);
}

void add(const float *x, const float *y, float *out, int64_t tokens, int64_t width) {
  of_two(ggml_add, x, y, tokens, out, tokens, width);
}

void add_bias(const float *x, const float *bias, float *out, int64_t tokens, int64_t width) {
  of_two(ggml_add, x, bias, 1, out, tokens, width);
}

void mul(const float *x, const float *y, float *out, int64_t tokens, int64_t width) {
  of_two(ggml_mul, x, y, tokens, out, tokens, width);
}

void swiglu(const float *gate, const float *up, float *out, int64_t tokens, int64_t width) {
  of_two(ggml_swiglu_split, gate, up, tokens, out, tokens, width);
}

void rms_norm(const float *x, const float *weight, float eps, float *out, int64_t tokens,
              int64_t hidden) {
  if (!tokens || !hidden) return;
  begin();
  tensor normal = at(ggml_rms_norm(now, rows(x, tokens, hidden), eps), out);
  run(at(ggml_mul(now, normal, rows(weight, 1, hidden)), out));
}

void layer_norm(const float *x, const float *weight, const float *bias, float eps, float *out,
                int64_t tokens, int64_t hidden) {
  if (!tokens || !hidden) return;
  begin();
  tensor normal = at(ggml_norm(now, rows(x, tokens, hidden), eps), out);
  tensor weighted = at(ggml_mul(now, normal, rows(weight, 1, hidden)), out);
  run(at(ggml_add(now, weighted, rows(bias, 1, hidden)), out));
}
