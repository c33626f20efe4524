/* What llama.cpp computes with: ggml's rows and dots, from its shared libraries. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

void ggml_cpu_init(void);
void dequantize_row_q4_0(const void *x, float *y, int64_t k);
void dequantize_row_q8_0(const void *x, float *y, int64_t k);
void quantize_row_q8_0(const float *x, void *y, int64_t k);
void ggml_vec_dot_q4_0_q8_0(int n, float *s, size_t bs, const void *x, size_t bx, const void *y,
                            size_t by, int rows);

static int ready;

void dequantise_q4_0(const uint8_t *data, float *out, int64_t rows, int64_t hidden) {
  if (!ready++) ggml_cpu_init();
  dequantize_row_q4_0(data, out, rows * hidden);
}

void dequantise_q8_0(const uint8_t *data, float *out, int64_t rows, int64_t hidden) {
  if (!ready++) ggml_cpu_init();
  dequantize_row_q8_0(data, out, rows * hidden);
}

void linear_q4_0(const float *x, const uint8_t *weight, float *out, int64_t tokens, int64_t hidden,
                 int64_t n_out) {
  if (!ready++) ggml_cpu_init();
  uint8_t *rounded = malloc(hidden / 32 * 34);
  for (int64_t t = 0; t < tokens; t++) {
    quantize_row_q8_0(x + t * hidden, rounded, hidden);
    for (int64_t o = 0; o < n_out; o++)
      ggml_vec_dot_q4_0_q8_0(hidden, out + t * n_out + o, 0, weight + o * (hidden / 32) * 18, 0,
                             rounded, 0, 1);
  }
  free(rounded);
}
