#include "attention_merge.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    attention_merge(const int* __restrict__ spans, const float* __restrict__ scratch,
                    float* __restrict__ out, int tokens, int heads, int head_dim, int capacity) {
  merge(spans, scratch, tokens, heads, head_dim, capacity, [&](bool inside, size_t at, float x) {
    if (inside) out[at] = x;
  });
}
