// Blocks of a prompt's queries, which are next to one another.
#pragma once
#include "portable.cuh"

constexpr int QUERIES = 64;  // of a block

struct Most {
  __device__ int operator()(int a, int b) const { return max(a, b); }
};

// How many cells the token has that has most; `partial` is of one element a warp.
static __device__ __forceinline__ int held_by(const int* spans, int tokens, int* partial) {
  int most = 0;
  for (int t = threadIdx.x; t < tokens; t += blockDim.x) most = max(most, spans[3 * t + 2]);
  return block_reduce(most, partial, Most());
}

// Of which sequence those tokens are that have cells: all of one.
static __device__ __forceinline__ int sequence_of(const int* spans, int tokens, int* partial) {
  int found = 0;
  for (int t = threadIdx.x; t < tokens; t += blockDim.x)
    if (spans[3 * t + 2] > 0) found = spans[3 * t];
  return block_reduce(found, partial, Most());
}

// The block of a token's queries, -1 of one that has no cells.
static __device__ __forceinline__ int block_of(const int* spans, int t) {
  return spans[3 * t + 2] > 0 ? (spans[3 * t + 2] - 1) / QUERIES : -1;
}

// The same where t is the first of a block, else -1.
static __device__ __forceinline__ int block_begun(const int* spans, int t) {
  const int own = block_of(spans, t);
  return t > 0 && block_of(spans, t - 1) == own ? -1 : own;
}
