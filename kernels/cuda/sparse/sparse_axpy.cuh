// Division of work in sparse_axpy.
#pragma once
#include "portable.cuh"

constexpr int COLUMNS = 8;            // per lane
constexpr int WIDTH = WARP * COLUMNS;  // columns per thread block
constexpr int WARPS = 8;              // per thread block, of WIDTH threads

// Number of splits: at least 512 neurons each, at most 32.
static __device__ __forceinline__ int splits_of(int neurons) {
  return max(1, min(32, neurons / 512));
}
