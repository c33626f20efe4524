// A token's row normalised by a block of threads, each of which has every so many-th four elements.
#pragma once
#include "elementwise.cuh"

// Four elements of a row of `width`, from `first` on; those beyond its end count as zero. Rows of
// whole fours begin where four are loaded at once.
static __device__ __forceinline__ Four load_of_row(const float* row, int first, int width) {
  if (width % 4 == 0) return load_four(row, first, width);
  Four four;
  for (int k = 0; k < 4; ++k) four.at[k] = first + k < width ? row[first + k] : 0.f;
  return four;
}

static __device__ __forceinline__ void store_of_row(float* row, int first, int width, Four four) {
  if (width % 4 == 0) return store_four(row, first, width, four);
  for (int k = 0; k < 4; ++k)
    if (first + k < width) row[first + k] = four.at[k];
}

// 1 / sqrt(mean(x^2) + eps) of the row whose fours bring(first) gives; `partial` is shared memory of
// an element for each warp.
template <class Bring>
static __device__ __forceinline__ float scale_of(int hidden, double eps, float* partial,
                                                 Bring bring) {
  float squares = 0.f;
  for (int i = 4 * threadIdx.x; i < hidden; i += 4 * blockDim.x) {
    const Four x = bring(i);
    for (int k = 0; k < 4; ++k) squares = fmaf(x.at[k], x.at[k], squares);
  }
  squares = block_reduce(squares, partial, Sum());
  return rsqrtf(squares / hidden + static_cast<float>(eps));
}

// Four elements of the row, from `first` on, by its scale.
static __device__ __forceinline__ Four normalised(const float* row, const float* weight, int first,
                                                  int hidden, float scale) {
  Four x = load_of_row(row, first, hidden);
  const Four w = load_of_row(weight, first, hidden);
  for (int k = 0; k < 4; ++k) x.at[k] = x.at[k] * scale * w.at[k];
  return x;
}
