// Block-sparse attention estimates: mean-pooled keys, and their products with pooled queries.
#include "cache.cuh"
#include "prompt_blocks.cuh"

// One thread block per part (block of keys) and KV head.
extern "C" __global__ void means_of_keys(const uint8_t* __restrict__ k,
                                         const int* __restrict__ lists,
                                         const int* __restrict__ spans,
                                         float* __restrict__ scratch, int capacity, int kv_heads,
                                         int head_dim, int sequences, int tokens, int parts) {
  __shared__ int partial[WARP];
  const int g = blockIdx.y, begin = blockIdx.x * QUERIES;
  const int held = held_by(spans, tokens, partial), end = min(begin + QUERIES, held);
  if (begin >= held) return;
  const int sequence = sequence_of(spans, tokens, partial);
  const int* const list = lists + static_cast<size_t>(sequence) * capacity;
  const size_t row_bytes = static_cast<size_t>(kv_heads) * head_bytes<FORMAT>(head_dim);
  float* const mean = scratch + (static_cast<size_t>(g) * parts + blockIdx.x) * head_dim;
  for (int d = threadIdx.x; d < head_dim; d += blockDim.x) {
    float total = 0.f;
    for (int j = begin; j < end; ++j)
      total += element_of<FORMAT>(k + list[j] * row_bytes, g * head_dim + d);
    mean[d] = total / static_cast<float>(end - begin);
  }
}

// One thread block per head and first token of a block of queries; warps take parts in turn.
extern "C" __global__ void block_scores(const float* __restrict__ q, const int* __restrict__ spans,
                                        const float* __restrict__ scratch, float* __restrict__ out,
                                        int tokens, int heads, int head_dim, int kv_heads,
                                        int parts, int rows) {
  DYNAMIC_SHARED(float, mean);
  const int t0 = blockIdx.x, h = blockIdx.y, b = block_begun(spans, t0);
  if (b < 0) return;
  int t1 = t0 + 1;
  while (t1 < tokens && block_of(spans, t1) == b) ++t1;
  for (int d = threadIdx.x; d < head_dim; d += blockDim.x) {
    float total = 0.f;
    for (int t = t0; t < t1; ++t) total += q[(static_cast<size_t>(t) * heads + h) * head_dim + d];
    mean[d] = total / static_cast<float>(t1 - t0);
  }
  __syncthreads();
  const int lane = threadIdx.x % WARP, warps = blockDim.x / WARP, g = h / (heads / kv_heads);
  for (int part = threadIdx.x / WARP; part <= b; part += warps) {
    const float* const own = scratch + (static_cast<size_t>(g) * parts + part) * head_dim;
    float dot = 0.f;
    for (int d = lane; d < head_dim; d += WARP) dot = fmaf(mean[d], own[d], dot);
    dot = warp_sum(dot);
    if (lane == 0) out[(static_cast<size_t>(h) * rows + b % rows) * parts + part] = dot;
  }
}
