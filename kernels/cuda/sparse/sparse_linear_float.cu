// sparse_linear with F32, F16 and BF16 weights in float32 (rows.cuh). An item is EIGHT elements.
#include "rows.cuh"

using f32 = float;
using f16 = half_t;
using bf16 = bfloat_t;
using T = FORMAT;
constexpr int EIGHT = 8;
constexpr int TILE = WARP * EIGHT * sizeof(T);  // bytes: an item per lane

// Adds the products of an item of each row with the tokens' items, `hidden` apart; a row's last
// item may be short.
template <int TOKENS>
static __device__ __forceinline__ void dot_some(const T* const (&items)[ROWS],
                                                 const float* __restrict__ x, int size, int hidden,
                                                 int tokens, float (&sums)[ROWS][TOKENS]) {
#pragma unroll
  for (int t = 0; t < TOKENS; ++t) {
    if (t >= tokens) break;
    for (int k = 0; k < size; ++k)
#pragma unroll
      for (int r = 0; r < ROWS; ++r)
        sums[r][t] = fmaf(to_float(items[r][k]), x[static_cast<size_t>(t) * hidden + k], sums[r][t]);
  }
}

// The same for whole items and tokens aligned to 16 bytes, with vector loads.
template <int TOKENS>
static __device__ __forceinline__ void dot_eight(const T* const (&items)[ROWS],
                                                  const float* __restrict__ x, int hidden,
                                                  int tokens, float (&sums)[ROWS][TOKENS]) {
  union {
    uint32_t words[EIGHT * sizeof(T) / 4];
    T elements[EIGHT];
  } w[ROWS];
#pragma unroll
  for (int r = 0; r < ROWS; ++r)
    load_words<EIGHT * sizeof(T) / 4>(reinterpret_cast<const uint32_t*>(items[r]), w[r].words);
#pragma unroll
  for (int t = 0; t < TOKENS; ++t) {
    if (t >= tokens) break;
    uint32_t own[EIGHT];
    load_words<EIGHT>(reinterpret_cast<const uint32_t*>(x + static_cast<size_t>(t) * hidden), own);
#pragma unroll
    for (int k = 0; k < EIGHT; ++k)
#pragma unroll
      for (int r = 0; r < ROWS; ++r)
        sums[r][t] = fmaf(to_float(w[r].elements[k]), __uint_as_float(own[k]), sums[r][t]);
  }
}

template <int TOKENS>
static __device__ __forceinline__ void multiply(const float* __restrict__ x, int hidden,
                                                const Weight& weight, const Active& active,
                                                uint4* tiles, float* partial, int tokens,
                                                float* __restrict__ out) {
  const bool aligned = hidden % 4 == 0;
  const auto dot = [&](const uint8_t* own, int tile, int first, int some, auto& sums) {
    const int lane = threadIdx.x % WARP, begin = (tile * WARP + lane) * EIGHT;
    const int size = min(EIGHT, hidden - begin);
    const T* items[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
      items[r] = reinterpret_cast<const T*>(own + r * TILE) + lane * EIGHT;
    const float* const from = x + static_cast<size_t>(first) * hidden + begin;
    if (size == EIGHT && aligned)
      dot_eight<TOKENS>(items, from, hidden, some, sums);
    else
      dot_some<TOKENS>(items, from, size, hidden, some, sums);
  };
  dot_rows<TOKENS, TILE>(weight, hidden * sizeof(T), active, tiles, partial, tokens, out, dot);
}

#define SPARSE_LINEAR(name, TOKENS, BLOCKS)                                                       \
  extern "C" __global__ void __launch_bounds__(WARPS * WARP, BLOCKS)                              \
      name(const float* x, const uint8_t* weight, const uint8_t* mask, const int* rows,           \
           const int* count, const int* slots, float* out, int tokens, int hidden, int held,      \
           int stride, int neurons) {                                                             \
    __shared__ uint4 tiles[TILES<TILE>];                                                          \
    __shared__ float partial[PARTIALS<TOKENS>];                                                   \
    multiply<TOKENS>(x, hidden, {weight, slots, stride}, {mask, rows, *count, neurons}, tiles,    \
                     partial, tokens, out);                                                       \
  }
SPARSE_LINEAR(sparse_linear_1, 1, 3)
SPARSE_LINEAR(sparse_linear_8, 8, 2)
