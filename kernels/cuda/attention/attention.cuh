// Online softmax of the attention kernels: the order in which a token's cells are summed.
//
// A token's cells (KV cache slots), from the first it sees, are divided into chunks. Each gives a
// partial result: weighted sum of values, maximum score, sum of weights. They are merged in chunk
// order, whichever block computed them, so bits do not depend on batch, grid or cell placement.
// Roundings in both ways of merging are explicit, or the compiler might fuse one and not the other.
#pragma once
#include "config.cuh"
#include "portable.cuh"

constexpr float LARGE = 32768.f;  // scale of weights on tensor cores

// The maximum to subtract: 0 if all scores are -infinity, which would give NaN.
static __device__ __forceinline__ float finite(float highest) {
  return highest > -INFINITY ? highest : 0.f;
}

static __device__ __forceinline__ int cells_of(const int* spans, int t) {
  return spans[3 * t + 2] - spans[3 * t + 1];
}

static __device__ __forceinline__ int chunks_of(int cells) { return (cells + CHUNK - 1) / CHUNK; }

// softcap * tanh(score / softcap); tanh x as 1 - 2 / (e^2x + 1), with an error below 8 U.
static __device__ __forceinline__ float capped(float score, float softcap, float inverse) {
  const float x = __fmul_rn(score, inverse);
  return __fmul_rn(softcap, __fadd_rn(1.f, -__fdividef(2.f, __fadd_rn(expf(x + x), 1.f))));
}

static __device__ __forceinline__ float biased(float score, float slope, int distance) {
  return fmaf(-slope, static_cast<float>(distance), score);
}

// Rescaling factors of the result before a chunk and of the chunk, when they are merged.
struct Factors {
  float before, chunk;
};

static __device__ __forceinline__ Factors factors(float before, float highest, float now) {
  return {expf(before - finite(now)), expf(highest - finite(now))};
}

static __device__ __forceinline__ float merged(float before, float chunk, Factors by) {
  return fmaf(before, by.before, __fmul_rn(chunk, by.chunk));
}

// Adds the weight of a head's sink, which has no value, to the sum of weights; `shrink` rescales
// what was summed before, and `one` is what a weight of 1 adds to the sum.
struct WithSink {
  float shrink, total;

  __device__ WithSink(float highest, float before, float sink, float one = 1.f)
      : shrink(1.f), total(before) {
    if (sink == -INFINITY) return;
    const Factors by = factors(highest, sink, fmaxf(highest, sink));
    shrink = by.before;
    total = merged(before, one, by);
  }

  __device__ float inverse() const { return shrink / total; }
};

// Split-KV workspace of `items`, each a (token, head): sums [items, chunks, head_dim], then maximum
// scores and sums of weights, [items, chunks] each.
struct Partials {
  float *sums, *highest, *totals;

  __device__ Partials(float* scratch, int items, int chunks, int head_dim) {
    const size_t all = static_cast<size_t>(items) * chunks;
    sums = scratch;
    highest = scratch + all * head_dim;
    totals = highest + all;
  }
};
