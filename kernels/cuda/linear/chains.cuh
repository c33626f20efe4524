// The order of linear's sums, and of sparse_linear's.
//
// A row's items, blocks of 32 elements or runs of eight floats, are dealt to 32 chains: chain c adds
// items c, c + 32, c + 64 ... one after the other, and chains are added one after the other. For few
// tokens a warp takes rows and each lane a chain. So a token's bits depend neither on how many come
// together nor on how rows lie.
#pragma once
#include "portable.cuh"

constexpr int CHAINS = WARP;

// Words of shared memory that a warp needs to add its chains: one more than a warp for each sum, so
// that lanes meet in no bank.
template <int ROWS, int TOKENS>
constexpr int PARTIAL = ROWS * TOKENS * (WARP + 1);

// Lane r * TOKENS + t gets the sum of all lanes' chains for row r and token t.
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
