// Top-k selection by a thread block: the threshold key, and indices for compaction.
#pragma once
#include "ordered.cuh"

constexpr int BINS = 256, OWN = BINS / WARP;

struct Selection {
  int bins[BINS];
  uint64_t chosen;
  int left, inside;
  int counts[WARP];  // per warp
};

// The k-th largest (k = `wanted`) of n distinct keys by radix selection, 8 bits per pass: a
// histogram of keys that match the prefix so far, then a scan of the bins by one warp. If nothing
// is wanted, a key above all.
template <class Key>
static __device__ __forceinline__ uint64_t edge_of(Selection& workspace, int n, int wanted,
                                                   Key key) {
  if (wanted <= 0) return ~0ull;
  const int lane = threadIdx.x % WARP;
  uint64_t edge = 0;  // the k-th key, or a bound between it and the next lower key
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
    if (threadIdx.x < WARP) {  // lane 0 takes the highest bins
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
    if (workspace.inside == wanted) break;  // the whole bin is wanted
  }
  return edge;
}

// Compaction index of the thread's item among those taken, `before` of them earlier (ballot scan).
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
