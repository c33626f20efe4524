// Two to eight tokens times block-format weights on tensor cores. A thread block computes 16 rows;
// each of its four warps has eight of the 32 chains (chains.cuh), and multiplies half at a time:
//
//   row    warp 0           warp 1           ...  warp 3            warp 0          ...
//   0      blocks 0-3 4-7   blocks 8-11 ...       blocks 24-27 ...  blocks 32-35 ...
//   ...
//
// Each warp has its own cp.async pipeline of packed blocks, AHEAD halves deep, with no block-wide
// barrier. A lane accumulates rows g and g + 8 by tokens 2t and 2t + 1 in eight chains.
#pragma once
#include "linear_blocks.cuh"

constexpr int FEW_ROWS = ROWS_OF_8 * FEW_WARPS, FEW_TOKENS = 8;
constexpr int OF_WARP = CHAINS / FEW_WARPS;  // chains per warp
constexpr int HALF = OF_WARP / 2;            // blocks of a row per stage
// Padded so that lanes write pieces to different banks.
struct FewStage {
  __align__(16) uint32_t low[HALF * PIECES][FEW_ROWS + (PIECES == 2 ? 1 : 2)][PIECE];
  __align__(16) uint32_t x[HALF * 2][FEW_TOKENS + 1][4];
  __align__(16) uint32_t high[HALF][FEW_ROWS][F::high + !F::high];
};

constexpr int FEW_STAGES = sizeof(FewStage) > 2560 ? 3 : 4, AHEAD = FEW_STAGES - 1;

// Scales, minimums, and initial values of dot products (zero-point correction); a lane's two rows,
// and its two tokens, are adjacent.
struct FewScales {
  __align__(16) float w[F::parts][HALF][FEW_ROWS], m[F::parts][HALF][F::m ? FEW_ROWS : 1];
  __align__(16) float scale[HALF][FEW_TOKENS], x_sum[F::parts][HALF][F::m ? FEW_TOKENS : 1];
  __align__(16) int start[F::parts][HALF][F::zero_point ? FEW_TOKENS : 1];
};

union FewShared {
  float of_lanes[FEW_WARPS * PARTIAL<ROWS_OF_8, FEW_TOKENS>];
  struct {
    FewStage stages[FEW_STAGES];
    FewScales scales[2];
  } of[FEW_WARPS];
  float partial[CHAINS][FEW_ROWS * FEW_TOKENS];
};

template <class T>
static __device__ __forceinline__ void load_two(const T* from, T* to) {
  load_words<2>(reinterpret_cast<const uint32_t*>(from), reinterpret_cast<uint32_t*>(to));
}

// A lane's loads of each half: pieces of rows and tokens to shared memory (cp.async), scales to
// registers. Past a row's end its last block is loaded again, and its scales are zero.
struct FewLoader {
  static constexpr int ACROSS = HALF * PIECES;        // pieces of a row per half
  static constexpr int ROWS_AT_ONCE = WARP / ACROSS;  // per warp and copy
  static constexpr int TIMES = FEW_ROWS / ROWS_AT_ONCE;

  const Weight<F> weight;
  const float* const scales;
  const int32_t* const totals;
  const int lane, blocks;
  const uint32_t *low[TIMES], *high[2], *x[2];  // at block 0
  size_t rows[2], token;                        // indices of their first blocks
  const uint32_t* token_x;

  // Of a half and of the next.
  struct {
    Packed<F> row[2];
    float scale;
    int total;
    uint32_t part[4];
  } prefetched[2];

  __device__ FewLoader(const uint32_t* q, const float* scales, const int32_t* totals,
                        const Rows& of, int tokens, int blocks)
      : weight(of.weight, static_cast<size_t>(of.count) * blocks), scales(scales), totals(totals),
        lane(threadIdx.x % WARP), blocks(blocks) {
    const auto of_row = [&](int i) {
      return static_cast<size_t>(min(of.first + i, of.count - 1)) * blocks;
    };
    const auto of_token = [&](int i) { return static_cast<size_t>(min(i, tokens - 1)) * blocks; };
#pragma unroll
    for (int k = 0; k < TIMES; ++k)
      low[k] = weight.low + of_row(lane / ACROSS + k * ROWS_AT_ONCE) * F::low +
               lane % PIECES * PIECE;
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      rows[k] = of_row(lane / HALF + 8 * k);
      high[k] = weight.high + rows[k] * F::high;
      x[k] = q + of_token(lane / 8 + 4 * k) * 8 + lane % 2 * 4;
    }
    token = of_token(lane / HALF);
    token_x = q + token * 8;
  }

  __device__ int inside(int block) const { return min(block, blocks - 1); }

  __device__ __forceinline__ void copy_weights(FewStage& to, int begin) const {
    const int of_low = inside(begin + lane % ACROSS / PIECES) * F::low;
#pragma unroll
    for (int k = 0; k < TIMES; ++k)
      copy_words<PIECE>(to.low[lane % ACROSS][lane / ACROSS + k * ROWS_AT_ONCE], low[k] + of_low);
    if constexpr (F::high > 0) {
      const int of_high = inside(begin + lane % HALF) * F::high;
#pragma unroll
      for (int k = 0; k < 2; ++k)
        copy_words<F::high>(to.high[lane % HALF][lane / HALF + 8 * k], high[k] + of_high);
    }
  }

  __device__ __forceinline__ void copy_x(FewStage& to, int begin) const {
    const int of_x = inside(begin + lane % 8 / 2) * 8;
#pragma unroll
    for (int k = 0; k < 2; ++k) copy_async_cached(to.x[lane % 8][lane / 8 + 4 * k], x[k] + of_x);
    commit_group();
  }

  __device__ __forceinline__ void load(int h, int begin) {
    const int block = inside(begin + lane % HALF);
#pragma unroll
    for (int k = 0; k < 2; ++k) prefetched[h].row[k] = weight.load(rows[k] + block);
    prefetched[h].scale = scales[token + block];
    if constexpr (NEEDS_TOTALS) prefetched[h].total = totals[token + block];
    if constexpr (NEEDS_TOTALS && F::parts == 2)
      load_words<4>(token_x + block * 8, prefetched[h].part);
  }

  __device__ __forceinline__ void put(int h, FewScales& to, int begin) const {
    const auto& [row, scale, total, part] = prefetched[h];
    const int i = lane / HALF, block = lane % HALF;
    const bool some = begin + block < blocks;
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const Factors<F> found = factors(row[k]);
#pragma unroll
      for (int p = 0; p < F::parts; ++p) {
        to.w[p][block][2 * i + k] = some ? found.w[p] : 0.f;
        if constexpr (F::m) to.m[p][block][2 * i + k] = some ? found.m[p] : 0.f;
      }
    }
    to.scale[block][i] = some ? scale : 0.f;
    if constexpr (NEEDS_TOTALS) {
      int sums[F::parts] = {};
      sums[F::parts - 1] = total;
      if constexpr (F::parts == 2) sums[1] -= sums[0] = total_of(part);
#pragma unroll
      for (int p = 0; p < F::parts; ++p) {
        if constexpr (F::m)
          to.x_sum[p][block][i] = some ? scale * static_cast<float>(sums[p]) : 0.f;
        if constexpr (F::zero_point > 0) to.start[p][block][i] = -F::zero_point * sums[p];
      }
    }
  }
};

// Fragments of 16 rows (a) and 8 tokens (b) for blocks `block` and `block` + 1 of a half.
static __device__ __forceinline__ void load_two_blocks(const FewStage& stage, int block,
                                                       uint32_t (&a)[2][4], uint32_t (&b)[4]) {
  const int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
  load_matrices(b, reinterpret_cast<const uint8_t*>(stage.x[2 * block]),
                lane / 8 * sizeof(stage.x[0]) + lane % 8 * 16);
  const unsigned own = lane / 16 * sizeof(stage.low[0]) + lane % 16 * 16;
  if constexpr (PIECES == 2) {  // bytes need no unpacking
#pragma unroll
    for (int k = 0; k < 2; ++k)
      load_matrices(a[k], reinterpret_cast<const uint8_t*>(stage.low[2 * (block + k)]), own);
    return;
  }
  uint32_t low[4];
  if constexpr (PIECE == 4)
    load_matrices(low, reinterpret_cast<const uint8_t*>(stage.low[block]), own);
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const int of = block + r / 2, row = r % 2 * 8 + g;
    uint32_t high = 0;
    if constexpr (PIECE < 4) low[r] = stage.low[of][row][t % PIECE];
    if constexpr (F::high > 0) high = stage.high[of][row][t % F::high];
    unpack_two<F>(low[r], high, t, a[r / 2][r % 2], a[r / 2][r % 2 + 2]);
  }
}

// Multiplies a block of 16 rows by 8 tokens and adds it to its chain.
static __device__ __forceinline__ void add_few(const FewScales& scales, int block,
                                               const uint32_t (&a)[4], const uint32_t* b,
                                               float (&sums)[4]) {
  const int g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
  int found[F::parts][4] = {};
  if constexpr (F::zero_point > 0)
#pragma unroll
    for (int e = 0; e < 2 * F::parts; ++e)
      load_two(scales.start[e / 2][block] + 2 * t, found[e / 2] + e % 2 * 2);
  multiply(a, b, found);
  float w[F::parts][2], m[F::parts][2], scale[2], x_sum[F::parts][2];
  load_two(scales.scale[block] + 2 * t, scale);
#pragma unroll
  for (int p = 0; p < F::parts; ++p) {
    load_two(scales.w[p][block] + 2 * g, w[p]);
    if constexpr (F::m) {
      load_two(scales.m[p][block] + 2 * g, m[p]);
      load_two(scales.x_sum[p][block] + 2 * t, x_sum[p]);
    }
  }
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    Factors<F> factor;
    Activations x;
    int dots[F::parts];
    x.scale = scale[e % 2];
#pragma unroll
    for (int p = 0; p < F::parts; ++p) {
      dots[p] = found[p][e];
      factor.w[p] = w[p][e / 2];
      if constexpr (F::m) factor.m[p] = m[p][e / 2], x.x_sum[p] = x_sum[p][e % 2];
    }
    sums[e] = add_block(sums[e], factor, x, dots);
  }
}

static __device__ __forceinline__ void up_to_eight(const int8_t* __restrict__ q,
                                                   const float* __restrict__ scale,
                                                   const int32_t* __restrict__ total,
                                                   const Rows& of, int tokens, int hidden,
                                                   FewShared& shared) {
#if !defined(HOST) && __CUDA_ARCH__ < 800  // no int8 mma.sync of these shapes
  few<FEW_TOKENS, ROWS_OF_8>(q, scale, total, of, tokens, hidden, shared.of_lanes);
#else
  const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, blocks = hidden / BLOCK;
  auto& own = shared.of[warp];
  FewLoader loader(reinterpret_cast<const uint32_t*>(q), scale, total, of, tokens, blocks);
  // First block of a half. Every other thread block takes the second half of eight chains first: if
  // all read the same activations at a time, they would wait for the same few slices of the cache.
  const int flip = blockIdx.x % 2 * HALF;
  const auto half = [&](int number) {
    return number / 2 * CHAINS + warp * OF_WARP + (number % 2 * HALF ^ flip);
  };
#pragma unroll
  for (int s = 0; s < AHEAD; ++s) loader.copy_weights(own.stages[s], half(s));
  wait_for_previous();
#pragma unroll
  for (int s = 0; s < AHEAD; ++s) loader.copy_x(own.stages[s], half(s));
#pragma unroll
  for (int h = 0; h < 2; ++h) loader.load(h, half(h));
  float sums[OF_WARP][4] = {};
  int stage = 0;
#pragma unroll 1
  for (int turn = 0; turn * CHAINS < blocks; ++turn)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      await_copies<AHEAD - 1>();
      loader.put(h, own.scales[h], half(2 * turn + h));
      __syncwarp();  // all lanes are done with the previous stage
      FewStage& free = own.stages[stage == 0 ? AHEAD : stage - 1];
      loader.copy_weights(free, half(2 * turn + h + AHEAD));
      loader.copy_x(free, half(2 * turn + h + AHEAD));
      loader.load(h, half(2 * turn + h + 2));
#pragma unroll
      for (int block = 0; block < HALF; block += 2) {
        uint32_t a[2][4], b[4];
        load_two_blocks(own.stages[stage], block, a, b);
#pragma unroll
        for (int k = 0; k < 2; ++k)
          add_few(own.scales[h], block + k, a[k], b + 2 * k, sums[h * HALF + block + k]);
      }
      stage = stage == AHEAD ? 0 : stage + 1;
    }

  await_copies<0>();
  __syncthreads();  // shared.partial overlays the stages
  const int g = lane / 4, t = lane % 4;
#pragma unroll
  for (int c = 0; c < OF_WARP; ++c)
#pragma unroll
    for (int e = 0; e < 4; ++e)
      shared.partial[warp * OF_WARP + (c ^ flip)]
                    [(g + 8 * (e / 2)) * FEW_TOKENS + 2 * t + e % 2] = sums[c][e];
  __syncthreads();
  const int row = of.first + threadIdx.x / FEW_TOKENS, token = threadIdx.x % FEW_TOKENS;
  float sum = 0.f;
#pragma unroll
  for (int c = 0; c < CHAINS; ++c) sum += shared.partial[c][threadIdx.x];
  if (row < of.count && token < tokens) of.out[static_cast<size_t>(token) * of.count + row] = sum;
#endif
}
