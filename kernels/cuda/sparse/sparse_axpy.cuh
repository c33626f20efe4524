// Division of work in sparse_axpy.
#pragma once
#include "config.cuh"
#include "portable.cuh"

constexpr int COLUMNS = WIDTH / WARP;  // per lane
constexpr int WARPS = WIDTH / WARP;

static __device__ __forceinline__ int splits_of(int neurons) {
  return max(1, min(MOST_SPLITS, neurons / LEAST_NEURONS));
}
