// Block-format weights times activations quantised to int8: dot products of a part are exact
// integers (dp4a or mma.sync), scaled in float32. `few` is for few tokens, without tensor cores.
#pragma once
#include "codes.cuh"
#include "linear.cuh"
#include "staging.cuh"

using F = FORMAT;
constexpr int WIDTH = BLOCK / F::parts;        // elements of a part
constexpr int WORDS = WIDTH / 4;
constexpr bool NEEDS_TOTALS = F::m || F::zero_point > 0;  // whether sums of activations are needed

// A block of a token's activations: scale, and per part the factor of the weight's minimum.
struct Activations {
  float scale, x_sum[F::parts];
};

// Sum of a part's int8 activations.
static __device__ __forceinline__ int total_of(const uint32_t* x) {
  int sum = 0;
#pragma unroll
  for (int c = 0; c < WORDS; ++c) sum = dot4(0x01010101, x[c], sum);
  return sum;
}

static __device__ __forceinline__ float add_block(float sum, const Factors<F>& factors,
                                                  const Activations& x, const int (&dots)[F::parts]) {
#pragma unroll
  for (int p = 0; p < F::parts; ++p)
    sum = fmaf(factors.w[p] * x.scale, static_cast<float>(dots[p]), sum);
  if constexpr (F::m) {
#pragma unroll
    for (int p = 0; p < F::parts; ++p) sum = fmaf(factors.m[p], x.x_sum[p], sum);
  }
  return sum;
}

// Tensor cores: pieces of at most 16 bytes in a block's low plane, and words of a piece.
constexpr int PIECES = F::low == 8 ? 2 : 1;
constexpr int PIECE = F::low / PIECES;

template <int WORDS>
static __device__ __forceinline__ void copy_words(uint32_t* to, const uint32_t* from) {
  if constexpr (WORDS == 4)
    copy_async(reinterpret_cast<uint4*>(to), reinterpret_cast<const uint4*>(from));
  else if constexpr (WORDS == 2)
    copy_async(reinterpret_cast<uint2*>(to), reinterpret_cast<const uint2*>(from));
  else if constexpr (WORDS == 1)
    copy_async(to, from);
}

// dots += 16 rows x 8 tokens, one block.
static __device__ __forceinline__ void multiply(const uint32_t (&a)[4], const uint32_t* b,
                                                int (&dots)[F::parts][4]) {
  if constexpr (F::parts == 1) {
    mma_m16n8k32(dots[0], a, {b[0], b[1]});
  } else {
    mma_m16n8k16(dots[0], {a[0], a[1]}, {b[0]});
    mma_m16n8k16(dots[1], {a[2], a[3]}, {b[1]});
  }
}

// Up to TOKENS tokens: a warp computes ROWS rows; block_of(row, block) loads a block.
template <int ROWS>
struct Item {
  Packed<F> rows[ROWS];
};

template <bool LET_NEXT = true, int TOKENS, int ROWS, class BlockOf>
static __device__ __forceinline__ void add_rows(float (&sums)[ROWS][TOKENS],
                                                const int8_t* __restrict__ q,
                                                const float* __restrict__ scale,
                                                const int32_t* __restrict__ total, int tokens,
                                                int blocks, BlockOf block_of) {
  const auto load = [&](int block) {
    Item<ROWS> item;
#pragma unroll
    for (int r = 0; r < ROWS; ++r) item.rows[r] = block_of(r, block);
    return item;
  };
  const auto add = [&](int block, const Item<ROWS>& item) {
    uint32_t codes[ROWS][8];
    Factors<F> factor[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      unpack(item.rows[r], codes[r]);
      factor[r] = factors(item.rows[r]);
    }
#pragma unroll
    for (int t = 0; t < TOKENS; ++t) {
      const size_t at = static_cast<size_t>(min(t, tokens - 1)) * blocks + block;
      uint32_t x[8];
      load_words<8>(reinterpret_cast<const uint32_t*>(q) + 8 * at, x);
      Activations own;
      own.scale = scale[at];
      int totals[F::parts] = {};
      if constexpr (NEEDS_TOTALS) {
        totals[F::parts - 1] = total[at];
        if constexpr (F::parts == 2) totals[1] -= totals[0] = total_of(x);
      }
#pragma unroll
      for (int p = 0; p < F::parts; ++p) own.x_sum[p] = own.scale * static_cast<float>(totals[p]);
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        int dots[F::parts];
#pragma unroll
        for (int p = 0; p < F::parts; ++p) {
          dots[p] = -F::zero_point * totals[p];
#pragma unroll
          for (int c = p * WORDS; c < p * WORDS + WORDS; ++c)
            dots[p] = dot4(codes[r][c], x[c], dots[p]);
        }
        sums[r][t] = add_block(sums[r][t], factor[r], own, dots);
      }
    }
  };
  for_chain<TOKENS <= 2 ? CHAIN_AHEAD : 1, LET_NEXT>(blocks, load, add);
}

template <int TOKENS, int ROWS>
static __device__ __forceinline__ void few(const int8_t* __restrict__ q,
                                           const float* __restrict__ scale,
                                           const int32_t* __restrict__ total,
                                           const Rows& of, int tokens, int hidden,
                                           float* partial) {
  const int warp = threadIdx.x / WARP, blocks = hidden / BLOCK, rows = of.count;
  const int row = of.first + warp * ROWS;
  const size_t before = static_cast<size_t>(of.matrix) * rows;
  const Weight<F> weight(of.weight, static_cast<size_t>(of.matrices) * rows * blocks);
  float sums[ROWS][TOKENS] = {};
  add_rows(sums, q, scale, total, tokens, blocks, [&](int r, int block) {
    return weight.load((before + min(row + r, rows - 1)) * blocks + block);
  });
  add_chains(sums, partial + warp * PARTIAL<ROWS, TOKENS>, of.out, tokens, rows, row);
}
