// What attention's kernels share: the order in which a token's cells are summed.
//
// A token's cells, counted from the first it sees, make chunks. Each gives a partial result: the
// weighted sum of values, the highest score and the sum of weights. Chunks merge in order, whoever
// did them, so neither batch nor grid nor where a cell lies changes a bit. What is rounded in both
// ways of merging says so, or the compiler might fuse one and not the other.
#pragma once
#include "portable.cuh"

constexpr int CHUNK = 128;  // cells
constexpr int FEW = 8;      // tokens, with up to which chunks are dealt out to blocks

// A maximum to subtract: 0 where nothing was above minus infinity, or that would give NaN.
static __device__ __forceinline__ float finite(float highest) {
  return highest > -INFINITY ? highest : 0.f;
}

static __device__ __forceinline__ int chunks_of(int cells) { return (cells + CHUNK - 1) / CHUNK; }

static __device__ __forceinline__ float score_of(float dot, float scale, float softcap, float slope,
                                                 int distance) {
  float score = __fmul_rn(dot, scale);
  if (softcap != 0.f) score = __fmul_rn(softcap, tanhf(score / softcap));
  return fmaf(-slope, static_cast<float>(distance), score);
}

// How partial results before and of a chunk shrink when they merge.
struct Factors {
  float before, chunk;
};

static __device__ __forceinline__ Factors factors(float before, float highest, float now) {
  return {expf(before - finite(now)), expf(highest - finite(now))};
}

static __device__ __forceinline__ float merged(float before, float chunk, Factors by) {
  return fmaf(before, by.before, __fmul_rn(chunk, by.chunk));
}

// Partial results of few tokens: [tokens, heads, chunks, head_dim] sums, then the highest scores
// and the sums of weights, [tokens, heads, chunks] each.
struct Partials {
  float *sums, *highest, *totals;

  __device__ Partials(float* scratch, int tokens, int heads, int head_dim, int capacity) {
    const size_t all = static_cast<size_t>(tokens) * heads * chunks_of(capacity);
    sums = scratch;
    highest = scratch + all * head_dim;
    totals = highest + all;
  }
};
