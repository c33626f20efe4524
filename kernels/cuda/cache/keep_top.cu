// Top-k cells that a head keeps: one thread block per head finds the threshold key (radix
// selection), then compacts the slots that reach it, in their order.
#include "selection.cuh"

extern "C" __global__ void __launch_bounds__(1024)
    keep_top(const float* __restrict__ scores, int64_t, int64_t first, int64_t last,
             int* __restrict__ out, int kv_heads, int held, int kept) {
  __shared__ Selection workspace;
  const float* const own = scores + static_cast<size_t>(blockIdx.x) * held;
  const int begin = static_cast<int>(first), end = held - static_cast<int>(last);
  const auto key = [&](int i) { return key_of(own[begin + i], i); };
  const int always = begin + static_cast<int>(last);
  const uint64_t edge = edge_of(workspace, end - begin, kept - always, key);
  int found = 0;
  for (int slot = 0; slot < held; slot += blockDim.x) {
    const int j = slot + threadIdx.x;
    const bool between = begin <= j && j < end;
    const bool takes = j < held && (!between || key(j - begin) >= edge);
    const int place = place_of(workspace, takes, found);
    if (takes) out[static_cast<size_t>(blockIdx.x) * kept + place] = j;
  }
}
