// Top-k filter of logits by one thread block: those below the k-th key become -infinity.
#include "selection.cuh"

extern "C" __global__ void __launch_bounds__(1024)
    top_k(const float* __restrict__ logits, int64_t k, float* __restrict__ out, int vocab) {
  __shared__ Selection workspace;
  const uint64_t edge = edge_of(workspace, vocab, static_cast<int>(k < vocab ? k : vocab),
                                [&](int i) { return key_of(logits[i], i); });
  for (int i = threadIdx.x; i < vocab; i += blockDim.x)
    out[i] = key_of(logits[i], i) >= edge ? logits[i] : -INFINITY;
}
