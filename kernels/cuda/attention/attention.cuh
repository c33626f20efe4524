// What attention's kernels share: the order in which a token's cells are summed.
//
// A token's cells, counted from the first it sees, make chunks. Each gives a partial result: the
// weighted sum of values, the highest score and the sum of weights. Chunks merge in order, whoever
// did them, so neither batch nor grid nor where a cell lies changes a bit. What is rounded in both
// ways of merging says so, or the compiler might fuse one and not the other.
#pragma once
#include "portable.cuh"

constexpr int THREADS = 128;      // of a block
constexpr int CHUNK = 128;        // cells
constexpr int FEW = 8;            // tokens, with up to which chunks are dealt out to blocks
constexpr float LARGE = 32768.f;  // by which tensor cores have weights larger

// A maximum to subtract: 0 where nothing was above minus infinity, or that would give NaN.
static __device__ __forceinline__ float finite(float highest) {
  return highest > -INFINITY ? highest : 0.f;
}

static __device__ __forceinline__ int cells_of(const int* spans, int t) {
  return spans[3 * t + 2] - spans[3 * t + 1];
}

static __device__ __forceinline__ int chunks_of(int cells) { return (cells + CHUNK - 1) / CHUNK; }

// softcap * tanh(score / softcap); tanh x as 1 - 2 / (e^2x + 1), off by less than 8 U.
static __device__ __forceinline__ float capped(float score, float softcap, float inverse) {
  const float x = __fmul_rn(score, inverse);
  return __fmul_rn(softcap, __fadd_rn(1.f, -__fdividef(2.f, __fadd_rn(expf(x + x), 1.f))));
}

static __device__ __forceinline__ float biased(float score, float slope, int distance) {
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

// The sum of weights with the weight of a head's sink, which has no value, and how all that was
// summed before shrinks by it; `one` is what a weight of 1 adds to the sum.
struct Ending {
  float shrink, total;

  __device__ Ending(float highest, float before, float sink, float one = 1.f)
      : shrink(1.f), total(before) {
    if (sink == -INFINITY) return;
    const Factors by = factors(highest, sink, fmaxf(highest, sink));
    shrink = by.before;
    total = merged(before, one, by);
  }

  __device__ float inverse() const { return shrink / total; }
};

// Partial results of few tokens' `items`, a head of a token each: [items, chunks, head_dim] sums,
// then the highest scores and the sums of weights, [items, chunks] each.
struct Partials {
  float *sums, *highest, *totals;

  __device__ Partials(float* scratch, int items, int chunks, int head_dim) {
    const size_t all = static_cast<size_t>(items) * chunks;
    sums = scratch;
    highest = scratch + all * head_dim;
    totals = highest + all;
  }
};
