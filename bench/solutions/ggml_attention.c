// assay: flags = ["-O2", "-L$LLAMA_CPP_LIB_PATH", "-Wl,-rpath,$LLAMA_CPP_LIB_PATH", "-lggml-cpu", "-lggml-base"]
// assay: align = 64
// assay: takes = "head_dim % 32 == 0"
// assay: formats = ["F32", "F16", "Q8_0", "Q4_0"]
/* ggml's flash attention over all cells of a KV cache. The mask (float16, as ggml requires) selects
 * the cells a token sees and holds the ALiBi bias, whose slopes are arbitrary here. */
#include <math.h>
#include <string.h>
#include "ggml.h"

static _Float16 *mask_of(const int32_t *lists, const int32_t *spans, const int32_t *positions,
                         const int32_t *cell_positions, const float *slopes, int64_t tokens,
                         int64_t heads, int64_t capacity) {
  _Float16 *mask = aligned_alloc(64, (heads * tokens * capacity * 2 + 63) / 64 * 64);
  for (int64_t i = 0; i < heads * tokens * capacity; i++) mask[i] = -INFINITY;
  for (int64_t h = 0; h < heads; h++)
    for (int64_t t = 0; t < tokens; t++)
      for (int64_t i = spans[3 * t + 1]; i < spans[3 * t + 2]; i++) {
        int64_t cell = lists[spans[3 * t] * capacity + i];
        float distance = (float)(positions[t] - cell_positions[cell]);
        mask[(h * tokens + t) * capacity + cell] = -slopes[h] * distance;
      }
  return mask;
}

void attention(const float *q, const uint8_t *k, const uint8_t *v, const int32_t *lists,
               const int32_t *spans, const int32_t *positions, const int32_t *cell_positions,
               const float *slopes, const float *sinks, double scale, double softcap, float *out,
               int64_t tokens, int64_t heads, int64_t kv_heads, int64_t head_dim,
               int64_t capacity) {
  if (!tokens) return;
  int64_t biased = 1;
  for (int64_t h = 0; h < heads; h++)
    if (slopes[h]) biased = heads;
  _Float16 *mask = mask_of(lists, spans, positions, cell_positions, slopes, tokens, biased, capacity);
  begin();
  tensor queries = at(ggml_new_tensor_3d(now, F32, head_dim, heads, tokens), q);
  tensor keys = at(ggml_new_tensor_3d(now, ASSAY_FORMAT, head_dim, kv_heads, capacity), k);
  tensor values = at(ggml_new_tensor_3d(now, ASSAY_FORMAT, head_dim, kv_heads, capacity), v);
  tensor seen = at(ggml_new_tensor_3d(now, F16, capacity, tokens, biased), mask);
  tensor result = ggml_flash_attn_ext(now, ggml_permute(now, queries, 0, 2, 1, 3),
                                      ggml_permute(now, keys, 0, 2, 1, 3),
                                      ggml_permute(now, values, 0, 2, 1, 3), seen, scale, 0,
                                      softcap);
  ggml_flash_attn_ext_add_sinks(result, rows(sinks, 1, heads));
  run(at(result, out));
  free(mask);
  for (int64_t t = 0; t < tokens; t++)  // ggml does not support tokens without cells
    if (spans[3 * t + 1] == spans[3 * t + 2])
      memset(out + t * heads * head_dim, 0, heads * head_dim * sizeof *out);
}
