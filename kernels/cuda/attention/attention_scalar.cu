// Attention for any head_dim, without tiles: one thread block per token and head. Threads score one
// cell of a chunk each, then sum values over cells, an element each, accumulating in `out`.
#include "attention.cuh"
#include "cache.cuh"

extern "C" __global__ void attention_scalar(
    const float* __restrict__ q, const uint8_t* __restrict__ k, const uint8_t* __restrict__ v,
    const int* __restrict__ lists, const int* __restrict__ spans,
    const int* __restrict__ positions, const int* __restrict__ cell_positions,
    const float* __restrict__ slopes, const float* __restrict__ sinks, double scale,
    double softcap, float* __restrict__ out, int tokens, int heads, int head_dim, int capacity,
    int kv_heads, int sequences) {
  __shared__ float weights[CHUNK], partial[WARP];
  __shared__ int cells[CHUNK];
  const int t = blockIdx.x / heads, head = blockIdx.x % heads, begin = spans[3 * t + 1];
  const int count = spans[3 * t + 2] - begin, c = threadIdx.x;  // CHUNK threads, one cell each
  const int* const list = lists + static_cast<size_t>(spans[3 * t]) * capacity + begin;
  const int column = head / (heads / kv_heads) * head_dim;
  const size_t row_bytes =
      static_cast<size_t>(kv_heads) * head_dim / FORMAT::BLOCK * FORMAT::BYTES;
  const float* const query = q + static_cast<size_t>(blockIdx.x) * head_dim;
  float* const mean = out + static_cast<size_t>(blockIdx.x) * head_dim;
  for (int d = threadIdx.x; d < head_dim; d += CHUNK) mean[d] = 0.f;
  const float cap = static_cast<float>(softcap);
  float highest = -INFINITY, total = 0.f;
  for (int first = 0; first < count; first += CHUNK) {
    const int seen = min(count - first, CHUNK);
    float score = -INFINITY;
    if (c < seen) {
      cells[c] = list[first + c];
      const uint8_t* const key = k + cells[c] * row_bytes;
      float dot = 0.f;
      for (int d = 0; d < head_dim; ++d)
        dot = fmaf(query[d], element_of<FORMAT>(key, column + d), dot);
      score = __fmul_rn(dot, static_cast<float>(scale));
      if (cap != 0.f) score = capped(score, cap, 1.f / cap);
      score = biased(score, slopes[head], positions[t] - cell_positions[cells[c]]);
    }
    const float chunk_highest = block_reduce(score, partial, Max());
    const float now = fmaxf(highest, chunk_highest);
    weights[c] = expf(score - finite(now));
    const float shrink = expf(highest - finite(now));
    total = fmaf(total, shrink, block_reduce(weights[c], partial, Sum()));
    highest = now;
    for (int d = threadIdx.x; d < head_dim; d += CHUNK) {
      float sum = mean[d] * shrink;
      for (int i = 0; i < seen; ++i)
        sum = fmaf(weights[i], element_of<FORMAT>(v + cells[i] * row_bytes, column + d), sum);
      mean[d] = sum;
    }
    __syncthreads();
  }
  const WithSink end(highest, total, sinks[head]);
  for (int d = threadIdx.x; d < head_dim && count > 0; d += CHUNK)
    mean[d] = mean[d] * end.shrink / end.total;
}
