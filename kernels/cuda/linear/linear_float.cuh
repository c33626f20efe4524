// F32, F16 and BF16 weights in items of EIGHT elements, and linear's kernel for few tokens.
#pragma once
#include "linear.cuh"

using f32 = float;
using f16 = half_t;
using bf16 = bfloat_t;
using T = FORMAT;
constexpr int EIGHT = 8;

// An item in its storage type.
template <class Element>
struct Run {
  static constexpr int WORDS = EIGHT * sizeof(Element) / 4;
  uint32_t words[WORDS];

  __device__ __forceinline__ float operator[](int k) const {
    if constexpr (WORDS == EIGHT)
      return __uint_as_float(words[k]);
    else
      return to_float(Element{static_cast<uint16_t>(words[k / 2] >> 16 * (k % 2))});
  }
};

// Loads an item, zero-padded past the row's end. WHOLE: rows are multiples of eight elements.
template <bool WHOLE, class Element>
static __device__ __forceinline__ Run<Element> load_run(const Element* __restrict__ row, int item,
                                                        int hidden) {
  Run<Element> run{};
  if constexpr (WHOLE) {
    load_words<Run<Element>::WORDS>(
        reinterpret_cast<const uint32_t*>(row + item * EIGHT), run.words);
  } else {
#pragma unroll
    for (int k = 0; k < EIGHT; ++k) {
      if (item * EIGHT + k >= hidden) continue;
      const Element element = row[item * EIGHT + k];
      if constexpr (sizeof(Element) == 4)
        run.words[k] = __float_as_uint(element);
      else
        run.words[k / 2] |= static_cast<uint32_t>(element.bits) << 16 * (k % 2);
    }
  }
  return run;
}

// Rounds to bfloat16.
static __device__ __forceinline__ Run<bfloat_t> rounded(const Run<bfloat_t>& run) { return run; }

template <class Element>
static __device__ __forceinline__ Run<bfloat_t> rounded(const Run<Element>& run) {
  Run<bfloat_t> found;
#pragma unroll
  for (int i = 0; i < EIGHT / 2; ++i) found.words[i] = to_bfloats(run[2 * i], run[2 * i + 1]);
  return found;
}

template <bool ROUNDS, class Element>
static __device__ __forceinline__ auto perhaps_rounded(const Run<Element>& run) {
  if constexpr (ROUNDS)
    return rounded(run);
  else
    return run;
}

static __device__ __forceinline__ int items_of(int hidden) { return (hidden + EIGHT - 1) / EIGHT; }

// Up to TOKENS tokens: a warp computes ROWS rows. ROUNDS: weights and x are rounded to bfloat16.
template <int ROWS>
struct Item {
  Run<T> rows[ROWS];
};

template <bool WHOLE, bool ROUNDS, int TOKENS, int ROWS>
static __device__ __forceinline__ void few(const float* __restrict__ x,
                                           const T* __restrict__ weight, float* __restrict__ out,
                                           int tokens, int hidden, int rows, int first,
                                           float* partial) {
  const int warp = threadIdx.x / WARP;
  const int row = first + warp * ROWS;
  float sums[ROWS][TOKENS] = {};

  const auto load = [&](int at) {
    Item<ROWS> item;
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
      item.rows[r] = load_run<WHOLE>(
          weight + static_cast<size_t>(min(row + r, rows - 1)) * hidden, at, hidden);
    return item;
  };
  const auto add = [&](int at, const Item<ROWS>& item) {
    decltype(perhaps_rounded<ROUNDS>(item.rows[0])) w[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) w[r] = perhaps_rounded<ROUNDS>(item.rows[r]);
#pragma unroll
    for (int t = 0; t < TOKENS; ++t) {
      const float* const row = x + static_cast<size_t>(min(t, tokens - 1)) * hidden;
      const auto v = perhaps_rounded<ROUNDS>(load_run<WHOLE>(row, at, hidden));
#pragma unroll
      for (int r = 0; r < ROWS; ++r)
#pragma unroll
        for (int k = 0; k < EIGHT; ++k) sums[r][t] = fmaf(w[r][k], v[k], sums[r][t]);
    }
  };
  for_chain<TOKENS <= 2 ? CHAIN_AHEAD : 1>(items_of(hidden), load, add);
  add_chains(sums, partial + warp * PARTIAL<ROWS, TOKENS>, out, tokens, rows, row);
}

template <bool ROUNDS, int TOKENS, int ROWS>
static __device__ __forceinline__ void few_of(const float* x, const Rows& of, int tokens,
                                              int hidden, float* partial) {
  const T* const w = reinterpret_cast<const T*>(of.weight);
  if (hidden % EIGHT)
    few<false, ROUNDS, TOKENS, ROWS>(x, w, of.out, tokens, hidden, of.count, of.first, partial);
  else
    few<true, ROUNDS, TOKENS, ROWS>(x, w, of.out, tokens, hidden, of.count, of.first, partial);
}

#define FEW(name, ROUNDS, TOKENS, ROWS)                                                           \
  extern "C" __global__ void FEW_BOUNDS(TOKENS)                                                   \
      name(const float* x, const uint8_t* weight, float* out, int tokens, int hidden, int rows) { \
    __shared__ float partial[FEW_WARPS * PARTIAL<ROWS, TOKENS>];                                  \
    const int first = static_cast<int>(blockIdx.x) * BLOCK_ROWS<ROWS>;                            \
    few_of<ROUNDS, TOKENS, ROWS>(x, {weight, out, rows, first}, tokens, hidden, partial);         \
  }

// The same for two and three weights in one launch.
#define FEW_JOINED(most, ROUNDS, TOKENS, ROWS)                                                     \
  extern "C" __global__ void FEW_BOUNDS(TOKENS)                                                    \
      linear_pair_##most(const float* x, const uint8_t* weight, const uint8_t* weight_1,           \
                         float* out, float* out_1, int tokens, int hidden, int rows, int rows_1) { \
    __shared__ float partial[FEW_WARPS * PARTIAL<ROWS, TOKENS>];                                   \
    const Rows own = own_rows<ROWS>({{weight, out, rows}, {weight_1, out_1, rows_1}});             \
    few_of<ROUNDS, TOKENS, ROWS>(x, own, tokens, hidden, partial);                                 \
  }                                                                                                \
  extern "C" __global__ void FEW_BOUNDS(TOKENS) linear_trio_##most(                                \
      const float* x, const uint8_t* weight, const uint8_t* weight_1, const uint8_t* weight_2,     \
      float* out, float* out_1, float* out_2, int tokens, int hidden, int rows, int rows_1,        \
      int rows_2) {                                                                                \
    __shared__ float partial[FEW_WARPS * PARTIAL<ROWS, TOKENS>];                                   \
    const Rows own = own_rows<ROWS>(                                                               \
        {{weight, out, rows}, {weight_1, out_1, rows_1}, {weight_2, out_2, rows_2}});              \
    few_of<ROUNDS, TOKENS, ROWS>(x, own, tokens, hidden, partial);                                 \
  }
