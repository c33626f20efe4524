// Summation order of linear and sparse_linear.
//
// A row's items (blocks of 32 elements or runs of eight floats) are dealt round-robin to 32 chains:
// chain c adds items c, c + 32, c + 64, ... in order, then chains are added in order. For few
// tokens a warp computes rows and each lane one chain. The order does not depend on the number of
// tokens or on the tiling, and so neither do a token's bits.
#pragma once
#include "portable.cuh"

constexpr int CHAINS = WARP;

// Words of shared memory per warp for the reduction of chains; the stride of WARP + 1 avoids bank
// conflicts.
template <int ROWS, int TOKENS>
constexpr int PARTIAL = ROWS * TOKENS * (WARP + 1);

// Reduces a warp's chains: lane r * TOKENS + t returns the sum for row r and token t.
template <int ROWS, int TOKENS>
static __device__ __forceinline__ float sum_of_chains(const float (&sums)[ROWS][TOKENS],
                                                      float* partial) {
  static_assert(ROWS * TOKENS <= WARP, "a lane for each sum");
  const int lane = threadIdx.x % WARP;
#pragma unroll
  for (int r = 0; r < ROWS; ++r)
#pragma unroll
    for (int t = 0; t < TOKENS; ++t) partial[(r * TOKENS + t) * (WARP + 1) + lane] = sums[r][t];
  __syncwarp();
  float sum = 0.f;
  if (lane < ROWS * TOKENS)
#pragma unroll
    for (int c = 0; c < CHAINS; ++c) sum += partial[lane * (WARP + 1) + c];
  return sum;
}
