// Many tokens times block-format weights on tensor cores: a thread block multiplies a tile of rows
// by a tile of tokens, block by block along the rows, chain by chain (chains.cuh), in a pipeline:
//
//   step         s                  s + 1              s + 2
//   codes        being multiplied   in shared memory   in flight (cp.async), packed
//   scales       in shared memory   in registers
//
// A warp computes 32 rows by 8 N tokens. It unpacks codes in registers: ldmatrix gives a lane the
// words of the planes that its fragments are made of.
#pragma once
#include "linear_blocks.cuh"

constexpr int WARP_ROWS = 32;

template <int ROW_WARPS, int N>
struct Tile {
  static constexpr int ROWS = WARP_ROWS * ROW_WARPS, TOKENS = 2 * 8 * N;
  static constexpr int THREADS = 2 * WARP * ROW_WARPS;
  static_assert(THREADS == ROWS + TOKENS, "a thread for each row and each token");
};

// A block of codes of each row and token of the tile.
template <class Tile>
struct Stage {
  __align__(16) uint32_t x[2][Tile::TOKENS][4], low[PIECES][Tile::ROWS][PIECE];
  uint32_t high[Tile::ROWS][F::high + !F::high];
};

// Its scales and minimums, ordered so that a lane reads its four as one vector.
template <class Tile>
struct Scales {
  __align__(16) float w[F::parts][Tile::ROWS], m[F::parts][F::m ? Tile::ROWS : 4];
  __align__(16) float scale[Tile::TOKENS], x_sum[F::parts][F::m ? Tile::TOKENS : 4];
};

template <class Tile>
struct Shared {
  Stage<Tile> stages[STAGES];
  Scales<Tile> scales[2];
};

struct Product {
  const int8_t* __restrict__ q;
  const float* __restrict__ scale;
  const int32_t* __restrict__ total;
  const uint8_t* __restrict__ packed;
  float* __restrict__ out;
  int tokens, blocks, rows;
};

// A lane's fragments are of rows g, g + 8, g + 16 and g + 24 of a warp's 32, and of tokens 2t,
// 2t + 1, 2t + 8 and 2t + 9 of 16: at these places each four are adjacent.
static __device__ __forceinline__ int place_of_row(int row) {
  return row / 32 * 32 + row % 8 * 4 + row / 8 % 4;
}
static __device__ __forceinline__ int place_of_token(int token) {
  return token / 16 * 16 + token / 2 % 4 * 4 + token / 8 % 2 * 2 + token % 2;
}

template <class T>
static __device__ __forceinline__ void load_four(const T* from, T (&to)[4]) {
  load_words<4>(reinterpret_cast<const uint32_t*>(from), reinterpret_cast<uint32_t*>(to));
}

// A fragments of a warp's 32 rows: [16 rows][words].
template <class Tile>
static __device__ __forceinline__ void load_rows(const Stage<Tile>& stage, int warp_row,
                                                 uint32_t (&a)[2][4]) {
  const int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
  if constexpr (F::low == 8) {  // bytes need no unpacking
#pragma unroll
    for (int i = 0; i < 2; ++i)
      load_matrices(a[i], reinterpret_cast<const uint8_t*>(stage.low[0][warp_row + 16 * i]),
                    16 * (lane / 16 * Tile::ROWS + lane % 16));
    return;
  }
  uint32_t low[4];
  if constexpr (PIECE == 4)
    load_matrices(low, reinterpret_cast<const uint8_t*>(stage.low[0][warp_row]), 16 * lane);
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const int row = warp_row + 8 * r + g;
    uint32_t high = 0;
    if constexpr (PIECE < 4) low[r] = stage.low[0][row][t % PIECE];
    if constexpr (F::high > 0) high = stage.high[row][t % F::high];
    uint32_t first, second;
    unpack_two<F>(low[r], high, t, first, second);
    a[r / 2][r % 2] = lowered<F>(first), a[r / 2][r % 2 + 2] = lowered<F>(second);
  }
}

// Adds a block of the warp's rows by its tokens to sums: [16 rows][8 tokens][elements].
template <class Tile, int N>
static __device__ __forceinline__ void add_tile(const Stage<Tile>& stage, const Scales<Tile>& scales,
                                                int warp_row, int warp_token,
                                                float (&sums)[2][N][4]) {
  const int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
  uint32_t a[2][4];
  load_rows(stage, warp_row, a);
  float w[F::parts][4], m[F::parts][4];
#pragma unroll
  for (int p = 0; p < F::parts; ++p) {
    load_four(scales.w[p] + warp_row + 4 * g, w[p]);
    if constexpr (F::m) load_four(scales.m[p] + warp_row + 4 * g, m[p]);
  }
  const unsigned own = 16 * (lane / 8 % 2 * Tile::TOKENS + lane / 16 * 8 + lane % 8);
#pragma unroll
  for (int j = 0; j < N; j += 2) {
    const int token = warp_token + 8 * j;
    uint32_t b[4];
    load_matrices(b, reinterpret_cast<const uint8_t*>(stage.x[0][token]), own);
    float scale[4], x_sum[F::parts][4];
    load_four(scales.scale + token + 4 * t, scale);
#pragma unroll
    for (int p = 0; p < F::parts; ++p)
      if constexpr (F::m) load_four(scales.x_sum[p] + token + 4 * t, x_sum[p]);
#pragma unroll
    for (int k = 0; k < 2; ++k)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        int found[F::parts][4] = {};
        multiply(a[i], b + 2 * k, found);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          Factors<F> factor;
          Activations x;
          int dots[F::parts];
          x.scale = scale[2 * k + e % 2];
#pragma unroll
          for (int p = 0; p < F::parts; ++p) {
            dots[p] = found[p][e];
            factor.w[p] = w[p][2 * i + e / 2];
            if constexpr (F::m) factor.m[p] = m[p][2 * i + e / 2];
            if constexpr (F::m) x.x_sum[p] = x_sum[p][2 * k + e % 2];
          }
          sums[i][j + k][e] = add_block(sums[i][j + k][e], factor, x, dots);
        }
      }
  }
}

template <int ROW_WARPS, int N>
static __device__ __forceinline__ void many(const Product& of, Shared<Tile<ROW_WARPS, N>>& shared) {
  using Own = Tile<ROW_WARPS, N>;
  const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, blocks = of.blocks;
  const int tile_row = blockIdx.x * Own::ROWS, tile_token = blockIdx.y * Own::TOKENS;
  const int warp_row = warp / 2 * WARP_ROWS, warp_token = warp % 2 * (8 * N);
  const bool works = tile_row + warp_row < of.rows && tile_token + warp_token < of.tokens;
  const Weight<F> weight(of.packed, static_cast<size_t>(of.rows) * blocks);
  // a thread loads for one row or one token; past the end, the last one again
  const bool of_row = threadIdx.x < Own::ROWS;
  const int number = of_row ? threadIdx.x : threadIdx.x - Own::ROWS;
  const auto row_at = [&](int i) {
    return static_cast<size_t>(min(tile_row + i, of.rows - 1)) * blocks;
  };
  const auto token_at = [&](int i) {
    return static_cast<size_t>(min(tile_token + i, of.tokens - 1)) * blocks;
  };
  const size_t own = of_row ? row_at(number) : token_at(number);

  // Adjacent threads copy the halves of 32 bytes; a row's block may have a single piece.
  const bool both = PIECES == 2 || !of_row;
  const uint32_t* from[2];
  unsigned to[2];  // words of a stage
  const int each = of_row ? F::low : 8;
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const int i = both ? number / 2 + k * (of_row ? Own::ROWS : Own::TOKENS) / 2 : number;
    const int piece = both ? number % 2 : 0;
    from[k] = (of_row ? weight.low + row_at(i) * F::low + PIECE * piece
                      : reinterpret_cast<const uint32_t*>(of.q) + token_at(i) * 8 + 4 * piece);
    to[k] = of_row ? 8 * Own::TOKENS + (piece * Own::ROWS + i) * PIECE
                   : (piece * Own::TOKENS + i) * 4;
  }
  const auto copy = [&](Stage<Own>& stage, int item) {
    uint32_t* const words = stage.x[0][0];
    if (PIECE == 4 || !of_row) {
      copy_words<4>(words + to[0], from[0] + item * each);
      if (both) copy_words<4>(words + to[1], from[1] + item * each);
    } else {
      copy_words<PIECE>(words + to[0], from[0] + item * each);
    }
    if (F::high && of_row)
      copy_words<F::high>(stage.high[number], weight.high + (own + item) * F::high);
    commit_group();
  };

  Packed<F> block;  // prefetched by a row's thread
  float scale;      // and these three by a token's
  int total;
  uint32_t part[4];
  const auto load = [&](int item) {
    if (of_row) {
      block = weight.load(own + item);
    } else {
      scale = of.scale[own + item];
      if constexpr (F::m) total = of.total[own + item];
      if constexpr (F::m && F::parts == 2)
        load_words<4>(reinterpret_cast<const uint32_t*>(of.q) + (own + item) * 8, part);
    }
  };
  const auto put = [&](Scales<Own>& to) {
    if (of_row) {
      const Factors<F> found = factors(block);
#pragma unroll
      for (int p = 0; p < F::parts; ++p) {
        to.w[p][place_of_row(number)] = found.w[p];
        if constexpr (F::m) to.m[p][place_of_row(number)] = found.m[p];
      }
      return;
    }
    to.scale[place_of_token(number)] = scale;
    if constexpr (F::m) {
      int totals[F::parts] = {};
      totals[F::parts - 1] = total;
      if constexpr (F::m && F::parts == 2) totals[1] -= totals[0] = total_of(part);
#pragma unroll
      for (int p = 0; p < F::parts; ++p)
        to.x_sum[p][place_of_token(number)] = scale * static_cast<float>(totals[p]);
    }
  };

  float sums[2][N][4] = {}, all[2][N][4] = {};
  // past the end, some item is loaded again
  Walk fetch(blocks);
  const auto next = [&] {
    const int item = min(fetch.item, blocks - 1);
    fetch.next();
    return item;
  };
  load(next());
  copy(shared.stages[0], 0);
  int behind = next();  // item of the newest copy
  copy(shared.stages[1], behind);
  int stage = 0, slot = 0;
#pragma unroll 1
  for (int chain = 0; chain < min(CHAINS, blocks); ++chain) {
#pragma unroll 1
    for (int item = chain; item < blocks; item += CHAINS) {
      await_copies<STAGES - 2>();
      put(shared.scales[slot]);
      __syncthreads();  // all warps are done with the previous stage
      load(behind);
      copy(shared.stages[stage == 0 ? STAGES - 1 : stage - 1], behind = next());
      if (works) add_tile(shared.stages[stage], shared.scales[slot], warp_row, warp_token, sums);
      stage = stage == STAGES - 1 ? 0 : stage + 1;
      slot ^= 1;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int j = 0; j < N; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          all[i][j][e] += sums[i][j][e];
          sums[i][j][e] = 0.f;
        }
  }

  if (!works) return;
  const int first_row = tile_row + warp_row + lane / 4;
  const int first_token = tile_token + warp_token + lane % 4 * 2;
#pragma unroll
  for (int i = 0; i < 2; ++i)
#pragma unroll
    for (int j = 0; j < N; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int row = first_row + 16 * i + 8 * (e / 2), token = first_token + 8 * j + e % 2;
        if (row < of.rows && token < of.tokens)
          of.out[static_cast<size_t>(token) * of.rows + row] = all[i][j][e];
      }
}
