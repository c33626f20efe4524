// Many tokens times F16 and BF16 weights on tensor cores: a thread block multiplies a tile of rows
// by a tile of tokens, half an item per stage. split_tokens has split the activations; cp.async
// copies them and the weights to shared memory STAGES - 1 stages ahead. A warp computes 32 rows by
// 8 N tokens.
#pragma once
#include "linear_tensor.cuh"

constexpr int WARP_ROWS = 32;
constexpr int RUNS = HALF / RUN;

template <int ROW_WARPS, int N>
struct Tile {
  static constexpr int ROWS = WARP_ROWS * ROW_WARPS, TOKENS = 2 * 8 * N;
  static constexpr int THREADS = 2 * WARP * ROW_WARPS;
  static_assert(ROWS == TOKENS, "a thread brings as many runs of both");
};

// Swizzle: run i of row r is at i ^ r / 2 % 4, so that ldmatrix reads consecutive rows without bank
// conflicts.
template <class Tile>
struct Stage {
  uint4 w[Tile::ROWS][RUNS], x[PARTS][Tile::TOKENS][RUNS];
  float power[SCALED ? Tile::TOKENS : 4];
};
static __device__ __forceinline__ int place_of(int row, int run) {
  return row * RUNS + (run ^ row / 2 % 4);
}

// Workspace: [PARTS, tokens, whole items], then powers [halves, tokens].
struct Parts {
  uint16_t* begin;
  size_t tokens, width;

  __device__ Parts(float* scratch, int tokens, int hidden)
      : begin(reinterpret_cast<uint16_t*>(scratch)), tokens(tokens),
        width(static_cast<size_t>(items_of(hidden)) * ITEM) {}
  __device__ uint16_t* part(int p, int token) const { return begin + (p * tokens + token) * width; }
  __device__ float* powers(int half) const {
    return reinterpret_cast<float*>(begin + PARTS * tokens * width) + half * tokens;
  }
};

struct Product {
  const float* x;
  const T* weight;
  Parts parts;
  float* out;
  int tokens, hidden, rows;
};

// Adds a half of the warp's rows by its tokens to sums: [16 rows][8 tokens][elements].
template <class Tile, int N>
static __device__ __forceinline__ void add_tile(const Stage<Tile>& stage, int warp_row,
                                                int warp_token, float (&sums)[2][N][4]) {
  const int lane = threadIdx.x % WARP, t = lane % 4;
  const unsigned of_row = 16 * place_of(lane % 16, lane / 16);
  const unsigned of_token = 16 * place_of(lane % 8, lane / 8);
  uint32_t a[2][2][4];
#pragma unroll
  for (int i = 0; i < 2; ++i)
#pragma unroll
    for (int s = 0; s < 2; ++s)  // two runs on: one bit of the swizzled index
      load_matrices(a[i][s], reinterpret_cast<const uint8_t*>(stage.w[warp_row + 16 * i]),
                    of_row ^ 32 * s);
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const int token = warp_token + 8 * j;
    if (PARTS == 3 && j == N / 2) __syncwarp();  // limits hoisted loads: else registers spill
    uint32_t b[PARTS][4];
#pragma unroll
    for (int p = 0; p < PARTS; ++p)
      load_matrices(b[p], reinterpret_cast<const uint8_t*>(stage.x[p][token]), of_token);
    float powers[2] = {1.f, 1.f};
    if constexpr (SCALED)
      load_words<2>(reinterpret_cast<const uint32_t*>(stage.power + token + 2 * t),
                    reinterpret_cast<uint32_t*>(powers));
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float found[4] = {};
      multiply_half(a[i], b, found);
#pragma unroll
      for (int e = 0; e < 4; ++e) sums[i][j][e] = add_half(sums[i][j][e], found[e], powers[e % 2]);
    }
  }
}

template <int ROW_WARPS, int N>
static __device__ __forceinline__ void many(const Product& of, Stage<Tile<ROW_WARPS, N>>* stages) {
  using Own = Tile<ROW_WARPS, N>;
  constexpr int AT_ONCE_ROWS = Own::ROWS / 2;
  static_assert(AT_ONCE_ROWS * RUNS == Own::THREADS, "a run of two rows for each thread");
  const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, halves = 2 * items_of(of.hidden);
  const int tile_row = blockIdx.x * Own::ROWS, tile_token = blockIdx.y * Own::TOKENS;
  const int warp_row = warp / 2 * WARP_ROWS, warp_token = warp % 2 * (8 * N);
  const T* const weight = of.weight + static_cast<size_t>(tile_row) * of.hidden;
  // past the end, the last row and token again
  const auto row_at = [&](int i) { return min(i, of.rows - 1 - tile_row) * of.hidden; };
  const auto token_at = [&](int i) { return min(i, of.tokens - 1 - tile_token); };
  // a thread copies one run of two rows and of two tokens
  const int run = threadIdx.x % RUNS, own = threadIdx.x / RUNS;
  const int width = static_cast<int>(of.parts.width);
  int row_begins[2], token_begins[2];  // offsets in the tile
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    row_begins[k] = row_at(own + k * AT_ONCE_ROWS) + run * RUN;
    token_begins[k] = token_at(own + k * AT_ONCE_ROWS) * width + run * RUN;
  }
  const auto copy = [&](Stage<Own>& stage, int half) {
    const bool some = half * HALF + run * RUN < of.hidden;
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const int place = place_of(own, run) + k * AT_ONCE_ROWS * RUNS;
      const T* const row = weight + (row_begins[k] + half * HALF);
      copy_async_or_zero(stage.w[0] + place, reinterpret_cast<const uint4*>(row), some);
#pragma unroll
      for (int p = 0; p < PARTS; ++p)
        copy_async(stage.x[p][0] + place,
                   reinterpret_cast<const uint4*>(of.parts.part(p, tile_token) +
                                                  (token_begins[k] + half * HALF)));
    }
    if (SCALED && threadIdx.x < Own::TOKENS)
      copy_async(stage.power + threadIdx.x,
                 of.parts.powers(half) + tile_token + token_at(threadIdx.x));
    commit_group();
  };

  float sums[2][N][4] = {};
#pragma unroll
  for (int s = 0; s < STAGES - 1; ++s) copy(stages[s], s);
  int stage = 0;
#pragma unroll 1
  for (int half = 0; half < halves; ++half) {
    await_copies<STAGES - 2>();
    __syncthreads();  // all warps are done with the previous stage
    // past the end, the last half is loaded again
    copy(stages[stage == 0 ? STAGES - 1 : stage - 1], min(half + STAGES - 1, halves - 1));
    add_tile(stages[stage], warp_row, warp_token, sums);
    stage = stage == STAGES - 1 ? 0 : stage + 1;
  }

  const auto row_of = [&](int i, int e) { return warp_row + 16 * i + 8 * (e / 2) + lane / 4; };
  const auto token_of = [&](int j, int e) { return warp_token + 8 * j + lane % 4 * 2 + e % 2; };
  const auto inside = [&](int row, int token) {
    return tile_row + row < of.rows && tile_token + token < of.tokens;
  };
  float* const out = of.out + static_cast<size_t>(tile_token) * of.rows + tile_row;
  bool some_nan = false;
#pragma unroll
  for (int i = 0; i < 2; ++i)
#pragma unroll
    for (int j = 0; j < N; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int row = row_of(i, e), token = token_of(j, e);
        if (!inside(row, token)) continue;
        out[token * of.rows + row] = sums[i][j][e];
        some_nan |= sums[i][j][e] != sums[i][j][e];
      }
  if (!some_nan) return;
#pragma unroll 1
  for (int n = 0; n < 8 * N; ++n) {
    const int e = n / 2 % 4, row = row_of(n % 2, e), token = token_of(n / 8, e);
    if (!inside(row, token)) continue;
    float& sum = out[token * of.rows + row];
    sum = unless_nan(sum, of.x + static_cast<size_t>(tile_token + token) * of.hidden,
                     weight + row_at(row), of.hidden);
  }
}
