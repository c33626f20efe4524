// A block of threads takes some rows of an expert's matrix (blockIdx.y), and all tokens that the
// expert has, up to MOST at a time: how many those are only the GPU knows.
#pragma once
#include "linear.cuh"

constexpr int MOST = 8;         // tokens at a time
constexpr int EXPERT_ROWS = 2;  // of a warp

// Where a block's sums of a single token go, such that each warp's are where its sums of MOST are:
// others may still be at those.
static __device__ __forceinline__ float* of_one(float* partial) {
  constexpr int SPARE = PARTIAL<EXPERT_ROWS, MOST> - PARTIAL<EXPERT_ROWS, 1>;
  return partial + threadIdx.x / WARP * SPARE;
}

// use(first token, how many) for an expert's tokens.
template <class Use>
static __device__ __forceinline__ void for_run(const int32_t* __restrict__ ends, Use use) {
  const int end = ends[blockIdx.y];
  for (int token = blockIdx.y ? ends[blockIdx.y - 1] : 0; token < end; token += MOST) {
    use(token, min(MOST, end - token));
    __syncwarp();  // what a warp adds its sums in serves the next tokens
  }
}
