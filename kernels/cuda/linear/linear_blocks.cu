// Block formats on activations in blocks of int8.
#include "linear_blocks.cuh"

#define FEW(name, TOKENS, ROWS)                                                              \
  extern "C" __global__ void FEW_BOUNDS(TOKENS, F::at_once)                                  \
      name(const int8_t* q, const float* scale, const int32_t* total, const uint8_t* weight, \
           float* out, int tokens, int hidden, int rows) {                                   \
    __shared__ float partial[FEW_WARPS * PARTIAL<ROWS, TOKENS>];                             \
    const int first = static_cast<int>(blockIdx.x) * BLOCK_ROWS<ROWS>;                       \
    few<TOKENS, ROWS>(q, scale, total, {weight, out, rows, first}, tokens, hidden, partial); \
  }
FEW(linear_1, 1, 2)
FEW(linear_2, 2, 2)
FEW(linear_4, 4, 4)
FEW(linear_8, 8, 4)

// Many tokens: each of four warps multiplies 32 rows by 32 tokens of the tile, on tensor cores.
constexpr int LINE = 8 * STEP + 4;  // words of a row in shared memory: no two of eight in one bank
constexpr int WARP_TILE = TILE / 2;
constexpr int M = F::m ? TILE : 0;

struct Shared {
  __align__(16) uint32_t codes[TILE * LINE], x[TILE * LINE];
  float w[STEP][F::parts][TILE], m[STEP][F::parts][M + !M];
  float scale[STEP][TILE], met[STEP][F::parts][M + !M];
};

// What a thread has on its way from global to shared memory.
struct Load {
  Packed<F> row;
  uint32_t x[8];
  float scale;
  int total;
};

static __device__ __forceinline__ void store_words(uint32_t* to, const uint32_t (&from)[8]) {
  reinterpret_cast<uint4*>(to)[0] = uint4{from[0], from[1], from[2], from[3]};
  reinterpret_cast<uint4*>(to)[1] = uint4{from[4], from[5], from[6], from[7]};
}

static __device__ __forceinline__ void put(const Load& load, Shared& tile, int slot, int item) {
  uint32_t codes[8];
  unpack_signed(load.row, codes);
  store_words(tile.codes + item * LINE + 8 * slot, codes);
  store_words(tile.x + item * LINE + 8 * slot, load.x);
  const Factors<F> own = factors(load.row);
  int totals[F::parts] = {};
  if constexpr (F::m) {
    totals[F::parts - 1] = load.total;
    if constexpr (F::parts == 2) totals[1] -= totals[0] = total_of(load.x);
  }
  tile.scale[slot][item] = load.scale;
#pragma unroll
  for (int p = 0; p < F::parts; ++p) {
    tile.w[slot][p][item] = own.w[p];
    if constexpr (F::m) {
      tile.m[slot][p][item] = own.m[p];
      tile.met[slot][p][item] = load.scale * static_cast<float>(totals[p]);
    }
  }
}

// The dots of 16 rows and 8 tokens, as tensor cores leave them in a warp.
static __device__ __forceinline__ void multiply(const uint32_t (&a)[4], const uint32_t (&b)[2],
                                                int (&dots)[F::parts][4]) {
#pragma unroll
  for (int p = 0; p < F::parts; ++p)
#pragma unroll
    for (int e = 0; e < 4; ++e) dots[p][e] = 0;
  if constexpr (F::parts == 1) {
    mma_m16n8k32(dots[0], a, b);
  } else {
    mma_m16n8k16(dots[0], {a[0], a[1]}, {b[0]});
    mma_m16n8k16(dots[1], {a[2], a[3]}, {b[1]});
  }
}

// A block of all of a warp's rows and tokens added to its sums.
static __device__ __forceinline__ void add_tile(const Shared& tile, int slot, int row, int token,
                                                float (&sums)[2][4][4]) {
  const int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
  uint32_t a[2][4];
  Factors<F> factor[2][2];
#pragma unroll
  for (int i = 0; i < 2; ++i)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int own = row + 16 * i + 8 * half + g;
      a[i][half] = tile.codes[own * LINE + 8 * slot + t];
      a[i][half + 2] = tile.codes[own * LINE + 8 * slot + t + 4];
#pragma unroll
      for (int p = 0; p < F::parts; ++p) {
        factor[i][half].w[p] = tile.w[slot][p][own];
        if constexpr (F::m) factor[i][half].m[p] = tile.m[slot][p][own];
      }
    }
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const uint32_t* const column = tile.x + (token + 8 * j + g) * LINE + 8 * slot;
    const uint32_t b[2] = {column[t], column[t + 4]};
    Activations x[2];
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const int own = token + 8 * j + 2 * t + k;
      x[k].scale = tile.scale[slot][own];
#pragma unroll
      for (int p = 0; p < F::parts; ++p)
        if constexpr (F::m) x[k].met[p] = tile.met[slot][p][own];
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      int found[F::parts][4];
      multiply(a[i], b, found);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        int dots[F::parts];
#pragma unroll
        for (int p = 0; p < F::parts; ++p) dots[p] = found[p][e];
        sums[i][j][e] = add_block(sums[i][j][e], factor[i][e / 2], x[e % 2], dots);
      }
    }
  }
}

extern "C" __global__ void __launch_bounds__(TILE_THREADS, 3)
    linear_tiles(const int8_t* __restrict__ q, const float* __restrict__ scale,
                 const int32_t* __restrict__ total, const uint8_t* __restrict__ packed,
                 float* __restrict__ out, int tokens, int hidden, int rows) {
  __shared__ Shared tile;
  const int blocks = hidden / BLOCK, slot = threadIdx.x / TILE, item = threadIdx.x % TILE;
  const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  const int warp_row = warp / 2 * WARP_TILE, warp_token = warp % 2 * WARP_TILE;
  const int first_row = blockIdx.x * TILE + warp_row, first_token = blockIdx.y * TILE + warp_token;
  const bool works = first_row < rows && first_token < tokens;
  const Weight<F> weight(packed, static_cast<size_t>(rows) * blocks);
  // rows and tokens beyond the last are the last again
  const int own_row = min(static_cast<int>(blockIdx.x) * TILE + item, rows - 1);
  const int own_token = min(static_cast<int>(blockIdx.y) * TILE + item, tokens - 1);

  Walk bring(blocks), take(blocks);
  Load load;
  const auto fetch = [&] {
    for (int s = 0; s < STEP; ++s, bring.next()) {
      if (s != slot || !bring.inside()) continue;
      load.row = weight.load(static_cast<size_t>(own_row) * blocks + bring.item);
      const size_t at = static_cast<size_t>(own_token) * blocks + bring.item;
      load_words<8>(reinterpret_cast<const uint32_t*>(q) + 8 * at, load.x);
      load.scale = scale[at];
      if constexpr (F::m) load.total = total[at];
    }
  };

  float sums[2][4][4] = {}, all[2][4][4] = {};
  fetch();
  while (take.inside()) {
    put(load, tile, slot, item);
    __syncthreads();
    fetch();
    for (int s = 0; s < STEP && take.inside(); ++s, take.next()) {
      if (!works) continue;
      add_tile(tile, s, warp_row, warp_token, sums);
      if (!take.ends_chain()) continue;
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j)
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            all[i][j][e] += sums[i][j][e];
            sums[i][j][e] = 0.f;
          }
    }
    __syncthreads();
  }

#pragma unroll
  for (int i = 0; i < 2; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int row = first_row + 16 * i + 8 * (e / 2) + lane / 4;
        const int token = first_token + 8 * j + lane % 4 * 2 + e % 2;
        if (row < rows && token < tokens)
          out[static_cast<size_t>(token) * rows + row] = all[i][j][e];
      }
}
