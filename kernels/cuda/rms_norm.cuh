// RMS norm of a row by a thread block, with float4 loads at a stride of the block's threads.
#pragma once
#include "elementwise.cuh"

constexpr int ROW_THREADS = 1024;  // per block, at most

// Four elements of a row of `width`, from `first` on; those past its end are zero.
// If width % 4 == 0, rows are aligned for float4.
static __device__ __forceinline__ Four load_of_row(const float* row, int first, int width) {
  if (width % 4 == 0) {
    const float4 v = *reinterpret_cast<const float4*>(row + first);
    return {v.x, v.y, v.z, v.w};
  }
  Four four;
  for (int k = 0; k < 4; ++k) four.at[k] = first + k < width ? row[first + k] : 0.f;
  return four;
}

static __device__ __forceinline__ void store_of_row(float* row, int first, int width, Four four) {
  if (width % 4 == 0) {
    *reinterpret_cast<float4*>(row + first) = {four.at[0], four.at[1], four.at[2], four.at[3]};
    return;
  }
  for (int k = 0; k < 4; ++k)
    if (first + k < width) row[first + k] = four.at[k];
}

// A thread's first four elements of weight and row, kept in registers until the row's factor is
// known: few rows are longer.
struct FirstFour {
  Four weight, x;
};

static __device__ __forceinline__ float with_squares(float sum, const Four& x) {
  for (int k = 0; k < 4; ++k) sum = fmaf(x.at[k], x.at[k], sum);
  return sum;
}

// 1 / sqrt(mean(x^2) + eps) of the row that fetch(first) loads by fours; `partial` is shared memory
// of one element per warp.
template <class Fetch>
static __device__ __forceinline__ float factor_of(const float* weight, int hidden, double eps,
                                                  float* partial, FirstFour& kept, Fetch fetch) {
  const int own = 4 * threadIdx.x, step = 4 * blockDim.x;
  float squares = 0.f;
  if (own < hidden) {
    kept.weight = load_of_row(weight, own, hidden);  // prefetched while x loads
    kept.x = fetch(own);
    squares = with_squares(squares, kept.x);
  }
  for (int i = own + step; i < hidden; i += step) squares = with_squares(squares, fetch(i));
  squares = block_reduce(squares, partial, Sum());
  return rsqrtf(squares / hidden + static_cast<float>(eps));
}

// Four elements of the row from `first` on, normalised and multiplied by the weight.
static __device__ __forceinline__ Four normalised(const float* row, const float* weight, int first,
                                                  int hidden, float factor, const FirstFour& kept) {
  const bool own = first == 4 * static_cast<int>(threadIdx.x);
  Four x = own ? kept.x : load_of_row(row, first, hidden);
  const Four w = own ? kept.weight : load_of_row(weight, first, hidden);
  for (int k = 0; k < 4; ++k) x.at[k] = x.at[k] * factor * w.at[k];
  return x;
}
