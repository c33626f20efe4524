// Merges split-KV partial results: one thread block per token and head.
#include "attention_merge.cuh"

#define KERNEL(name, one)                                                                       \
  extern "C" __global__ void __launch_bounds__(THREADS)                                         \
      name(const int* __restrict__ spans, const float* __restrict__ sinks,                      \
           const float* __restrict__ scratch, float* __restrict__ out, int tokens, int heads,   \
           int head_dim, int capacity) {                                                        \
    __shared__ Steps merging;                                                                   \
    wait_for_previous();                                                                        \
    const int cells = cells_of(spans, blockIdx.x / heads);                                      \
    merge(chunks_of(cells), chunks_of(capacity), sinks, scratch, one, heads, head_dim, merging, \
          [&](bool inside, size_t at, float x) {                                                \
            if (inside) out[at] = x;                                                            \
          });                                                                                   \
  }

KERNEL(attention_merge, 1.f)
KERNEL(attention_merge_large, LARGE)  // after tensor core kernels
