// How sparse_axpy divides its sums.
#pragma once
#include "portable.cuh"

constexpr int COLUMNS = 8;            // of a lane
constexpr int WIDTH = WARP * COLUMNS;  // columns of a block
constexpr int WARPS = 8;              // of a block: WIDTH threads

// How many blocks' sums make one: of at least 512 neurons each, and no more than 32.
static __device__ __forceinline__ int splits_of(int neurons) {
  return max(1, min(32, neurons / 512));
}
