// One block looks for the key of the k-th token, eight bits at a time: keys that begin as those
// chosen so far are counted by their next bits, and the bin in which the k-th lies is what it has.
#include "ordered.cuh"

constexpr int BINS = 256, OWN = BINS / WARP;

extern "C" __global__ void __launch_bounds__(1024)
    top_k(const float* __restrict__ logits, int64_t k, float* __restrict__ out, int vocab) {
  __shared__ int bins[BINS];
  __shared__ uint64_t chosen;
  __shared__ int left, inside;
  const int lane = threadIdx.x % WARP;
  uint64_t edge = 0;  // of keys that stay the least, or one that is below it and above all others
  int wanted = static_cast<int>(k < vocab ? k : vocab);
  for (int shift = 56; shift >= 0; shift -= 8) {
    for (int b = threadIdx.x; b < BINS; b += blockDim.x) bins[b] = 0;
    __syncthreads();
    for (int first = 0; first < vocab; first += blockDim.x) {
      const int i = first + threadIdx.x;
      const uint64_t key = i < vocab ? key_of(logits[i], i) : 0;
      const bool counts = i < vocab && (key ^ edge) >> shift < BINS;
      const int bin = counts ? static_cast<int>(key >> shift & (BINS - 1)) : -1;
      const uint32_t alike = __match_any_sync(ALL, bin);
      if (counts && __ffs(alike) - 1 == lane) atomicAdd(&bins[bin], __popc(alike));
    }
    __syncthreads();
    if (threadIdx.x < WARP) {  // lane 0 has the highest bins
      const int top = BINS - 1 - OWN * lane;
      int own = 0;
      for (int b = 0; b < OWN; ++b) own += bins[top - b];
      int upto = own;
      for (int m = 1; m < WARP; m *= 2) {
        const int before = __shfl_up_sync(ALL, upto, m);
        if (lane >= m) upto += before;
      }
      int above = upto - own;
      if (above < wanted && wanted <= upto) {
        int bin = top;
        while (above + bins[bin] < wanted) above += bins[bin--];
        chosen = edge | static_cast<uint64_t>(bin) << shift;
        left = wanted - above;
        inside = bins[bin];
      }
    }
    __syncthreads();
    edge = chosen;
    wanted = left;
    if (inside == wanted) break;  // all of them stay
  }
  for (int i = threadIdx.x; i < vocab; i += blockDim.x)
    out[i] = key_of(logits[i], i) >= edge ? logits[i] : -INFINITY;
}
