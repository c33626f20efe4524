// The best of many things by a block of threads: the edge that the wanted ones reach, and places in
// their order.
#pragma once
#include "ordered.cuh"

constexpr int BINS = 256, OWN = BINS / WARP;

struct Selection {
  int bins[BINS];
  uint64_t chosen;
  int left, inside;
  int counts[WARP];  // of each warp
};

// The least of the `wanted` largest of n keys, no two of which are equal. It is looked for eight
// bits at a time: keys that begin as those chosen so far are counted by their next bits, and the bin
// in which it lies is what it has. A key of nothing wanted is above all.
template <class Key>
static __device__ __forceinline__ uint64_t edge_of(Selection& workspace, int n, int wanted,
                                                   Key key) {
  if (wanted <= 0) return ~0ull;
  const int lane = threadIdx.x % WARP;
  uint64_t edge = 0;  // of keys that stay the least, or one that is below it and above all others
  for (int shift = 56; shift >= 0; shift -= 8) {
    for (int b = threadIdx.x; b < BINS; b += blockDim.x) workspace.bins[b] = 0;
    __syncthreads();
    for (int first = 0; first < n; first += blockDim.x) {
      const int i = first + threadIdx.x;
      const uint64_t own = i < n ? key(i) : 0;
      const bool counts = i < n && (own ^ edge) >> shift < BINS;
      const int bin = counts ? static_cast<int>(own >> shift & (BINS - 1)) : -1;
      const uint32_t alike = __match_any_sync(ALL, bin);
      if (counts && __ffs(alike) - 1 == lane) atomicAdd(&workspace.bins[bin], __popc(alike));
    }
    __syncthreads();
    if (threadIdx.x < WARP) {  // lane 0 has the highest bins
      const int top = BINS - 1 - OWN * lane;
      int own = 0;
      for (int b = 0; b < OWN; ++b) own += workspace.bins[top - b];
      int upto = own;
      for (int m = 1; m < WARP; m *= 2) {
        const int before = __shfl_up_sync(ALL, upto, m);
        if (lane >= m) upto += before;
      }
      int above = upto - own;
      if (above < wanted && wanted <= upto) {
        int bin = top;
        while (above + workspace.bins[bin] < wanted) above += workspace.bins[bin--];
        workspace.chosen = edge | static_cast<uint64_t>(bin) << shift;
        workspace.left = wanted - above;
        workspace.inside = workspace.bins[bin];
      }
    }
    __syncthreads();
    edge = workspace.chosen;
    wanted = workspace.left;
    if (workspace.inside == wanted) break;  // all of them stay
  }
  return edge;
}

// The place of a thread's thing among those that threads take, `before` of which were taken already.
static __device__ __forceinline__ int place_of(Selection& workspace, bool takes, int& before) {
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
  const uint32_t taken = __ballot_sync(ALL, takes);
  if (lane == 0) workspace.counts[warp] = __popc(taken);
  __syncthreads();
  int place = before + __popc(taken & ((1u << lane) - 1));
  for (int w = 0; w < warps; ++w) {
    if (w < warp) place += workspace.counts[w];
    before += workspace.counts[w];
  }
  __syncthreads();
  return place;
}
