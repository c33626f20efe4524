// linear of a mixture of experts: a thread block computes rows of expert blockIdx.y for all tokens
// routed to it, at most MOST at a time. Their number (`ends`) is known only on the GPU.
#pragma once
#include "linear.cuh"

// Start of `partial` for a single token, such that each warp stays within its own part for MOST
// tokens, since other warps may still use theirs.
static __device__ __forceinline__ float* of_one(float* partial) {
  constexpr int SPARE = PARTIAL<EXPERT_ROWS, MOST> - PARTIAL<EXPERT_ROWS, 1>;
  return partial + threadIdx.x / WARP * SPARE;
}

// Calls use(first token, count) for runs of an expert's tokens.
template <class Use>
static __device__ __forceinline__ void for_run(const int32_t* __restrict__ ends, Use use) {
  const int end = ends[blockIdx.y];
  for (int token = blockIdx.y ? ends[blockIdx.y - 1] : 0; token < end; token += MOST) {
    use(token, min(MOST, end - token));
    __syncwarp();  // `partial` is reused for the next tokens
  }
}
