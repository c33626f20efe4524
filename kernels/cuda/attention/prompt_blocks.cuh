// Blocks of consecutive queries of a prompt.
#pragma once
#include "portable.cuh"

constexpr int QUERIES = 64;  // per block

struct Most {
  __device__ int operator()(int a, int b) const { return max(a, b); }
};

// The most cells that any token has; `partial` holds one element per warp.
static __device__ __forceinline__ int held_by(const int* spans, int tokens, int* partial) {
  int most = 0;
  for (int t = threadIdx.x; t < tokens; t += blockDim.x) most = max(most, spans[3 * t + 2]);
  return block_reduce(most, partial, Most());
}

// The sequence to which all tokens that have cells belong.
static __device__ __forceinline__ int sequence_of(const int* spans, int tokens, int* partial) {
  int found = 0;
  for (int t = threadIdx.x; t < tokens; t += blockDim.x)
    if (spans[3 * t + 2] > 0) found = spans[3 * t];
  return block_reduce(found, partial, Most());
}

// Index of a token's block of queries, -1 if it has no cells.
static __device__ __forceinline__ int block_of(const int* spans, int t) {
  return spans[3 * t + 2] > 0 ? (spans[3 * t + 2] - 1) / QUERIES : -1;
}

// Index of the block of queries whose first token is t, else -1.
static __device__ __forceinline__ int block_begun(const int* spans, int t) {
  const int own = block_of(spans, t);
  return t > 0 && block_of(spans, t - 1) == own ? -1 : own;
}
