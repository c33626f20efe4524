// attention_merge with int8 quantisation as epilogue; heads are whole blocks.
#include "attention_merge.cuh"
#include "quantise_activations.cuh"

#define KERNEL(name, one)                                                                       \
  extern "C" __global__ void __launch_bounds__(THREADS)                                         \
      name(const int* __restrict__ spans, const float* __restrict__ sinks,                      \
           const float* __restrict__ scratch, float* __restrict__ out,                          \
           int8_t* __restrict__ codes, float* __restrict__ steps, int32_t* __restrict__ total,  \
           int tokens, int heads, int head_dim, int capacity) {                                 \
    __shared__ Steps merging;                                                                   \
    wait_for_previous();                                                                        \
    const int cells = cells_of(spans, blockIdx.x / heads);                                      \
    merge(chunks_of(cells), chunks_of(capacity), sinks, scratch, one, heads, head_dim, merging, \
          [&](bool, size_t at, float x) {                                                       \
            out[at] = x;                                                                        \
            round_one(x, at, codes, steps, total);                                              \
          });                                                                                   \
  }

KERNEL(attention_merge_round, 1.f)
KERNEL(attention_merge_large_round, LARGE)  // for attention on tensor cores
