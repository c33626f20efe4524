// F32, F16 and BF16 weights, all rounded to bfloat16: many tokens on tensor cores. Their sums are in
// no order that few tokens could follow.
#include "linear_float.cuh"

FEW(linear_1, true, 1, 2)
FEW(linear_2, true, 2, 2)
FEW(linear_4, true, 4, 4)
FEW(linear_8, true, 8, 4)

// Each of four warps multiplies 64 rows by 32 tokens.
constexpr int ROWS = 128, TOKENS = 64, THREADS = 128;
constexpr int SLOTS = 4;  // items of a row that are in shared memory at once
constexpr int LINE = SLOTS * EIGHT / 2 + 4;  // words of a row there: no two of eight in one bank
constexpr int TOGETHER = THREADS / SLOTS;    // rows or tokens that the block brings at once
constexpr int WARP_ROWS = 64, WARP_TOKENS = 32;

struct Shared {
  __align__(16) uint32_t w[ROWS * LINE], x[TOKENS * LINE];
};

static __device__ __forceinline__ void put(const Run<bfloat_t>& run, uint32_t* to) {
  *reinterpret_cast<uint4*>(to) = uint4{run.words[0], run.words[1], run.words[2], run.words[3]};
}

// Items of a warp's rows and tokens, two at a time, added to its sums.
static __device__ __forceinline__ void add_items(const Shared& tile, int row, int token,
                                                 float (&sums)[4][4][4]) {
  const int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int word = 0; word < SLOTS * EIGHT / 2; word += EIGHT) {
    uint32_t b[4][2];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint32_t* const column = tile.x + (token + 8 * j + g) * LINE + word + t;
      b[j][0] = column[0], b[j][1] = column[4];
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t* const upper = tile.w + (row + 16 * i + g) * LINE + word + t;
      const uint32_t* const lower = upper + 8 * LINE;
      const uint32_t a[4] = {upper[0], lower[0], upper[4], lower[4]};
#pragma unroll
      for (int j = 0; j < 4; ++j) mma_m16n8k16_bf16(sums[i][j], a, b[j]);
    }
  }
}

template <bool WHOLE>
static __device__ __forceinline__ void many(const float* __restrict__ x,
                                            const T* __restrict__ weight, float* __restrict__ out,
                                            int tokens, int hidden, int rows, Shared& tile) {
  const int items = items_of(hidden), slot = threadIdx.x % SLOTS, own = threadIdx.x / SLOTS;
  const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  const int tile_row = warp / 2 * WARP_ROWS, tile_token = warp % 2 * WARP_TOKENS;
  const int first_row = blockIdx.x * ROWS, first_token = blockIdx.y * TOKENS;
  const bool works = first_row + tile_row < rows && first_token + tile_token < tokens;

  Run<T> w[ROWS / TOGETHER];  // on their way from global to shared memory
  Run<float> v[TOKENS / TOGETHER];
  const auto fetch = [&](int item) {
#pragma unroll
    for (int i = 0; i < ROWS / TOGETHER; ++i) {
      const int row = min(first_row + own + i * TOGETHER, rows - 1);
      w[i] = item < items ? load_run<WHOLE>(weight + static_cast<size_t>(row) * hidden, item, hidden)
                          : Run<T>{};
    }
#pragma unroll
    for (int i = 0; i < TOKENS / TOGETHER; ++i) {
      const int token = min(first_token + own + i * TOGETHER, tokens - 1);
      v[i] = item < items ? load_run<WHOLE>(x + static_cast<size_t>(token) * hidden, item, hidden)
                          : Run<float>{};
    }
  };

  float sums[4][4][4] = {};
  fetch(slot);
  for (int first = 0; first < items; first += SLOTS) {
#pragma unroll
    for (int i = 0; i < ROWS / TOGETHER; ++i)
      put(rounded(w[i]), tile.w + (own + i * TOGETHER) * LINE + 4 * slot);
#pragma unroll
    for (int i = 0; i < TOKENS / TOGETHER; ++i)
      put(rounded(v[i]), tile.x + (own + i * TOGETHER) * LINE + 4 * slot);
    __syncthreads();
    fetch(first + SLOTS + slot);
    if (works) add_items(tile, tile_row, tile_token, sums);
    __syncthreads();
  }

#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int row = first_row + tile_row + 16 * i + 8 * (e / 2) + lane / 4;
        const int token = first_token + tile_token + 8 * j + lane % 4 * 2 + e % 2;
        if (row < rows && token < tokens)
          out[static_cast<size_t>(token) * rows + row] = sums[i][j][e];
      }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    linear_tiles(const float* x, const uint8_t* weight, float* out, int tokens, int hidden,
                 int rows) {
  __shared__ Shared tile;
  const T* const w = reinterpret_cast<const T*>(weight);
  if (hidden % EIGHT)
    many<false>(x, w, out, tokens, hidden, rows, tile);
  else
    many<true>(x, w, out, tokens, hidden, rows, tile);
}
