// F32, F16 and BF16 weights, in float32. An item is a run of EIGHT elements.
#include "linear.cuh"

using f32 = float;
using f16 = half_t;
using bf16 = bfloat_t;
using T = FORMAT;
constexpr int EIGHT = 8;

// An item as it lies in memory.
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

// Of a row; zeros beyond its end. Rows are WHOLE if none has fewer than eight elements in its last.
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

static __device__ __forceinline__ int items_of(int hidden) { return (hidden + EIGHT - 1) / EIGHT; }

// Up to TOKENS tokens: a warp for ROWS rows.
template <int ROWS>
struct Item {
  Run<T> rows[ROWS];
};

template <bool WHOLE, int TOKENS, int ROWS>
static __device__ __forceinline__ void few(const float* __restrict__ x,
                                           const T* __restrict__ weight, float* __restrict__ out,
                                           int tokens, int hidden, int rows, float* partial) {
  const int warp = threadIdx.x / WARP;
  const int row = (blockIdx.x * FEW_WARPS + warp) * ROWS;
  if (row >= rows) return;
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
#pragma unroll
    for (int t = 0; t < TOKENS; ++t) {
      const Run<float> run =
          load_run<WHOLE>(x + static_cast<size_t>(min(t, tokens - 1)) * hidden, at, hidden);
#pragma unroll
      for (int r = 0; r < ROWS; ++r)
#pragma unroll
        for (int k = 0; k < EIGHT; ++k)
          sums[r][t] = fmaf(item.rows[r][k], run[k], sums[r][t]);
    }
  };
  for_chain<TOKENS <= 2 ? 2 : 1>(items_of(hidden), load, add);
  add_chains(sums, partial + warp * ROWS * TOKENS * (WARP + 1), out, tokens, rows, row);
}

#define FEW(name, TOKENS, ROWS)                                                                    \
  extern "C" __global__ void __launch_bounds__(FEW_WARPS * WARP)                                   \
      name(const float* x, const uint8_t* weight, float* out, int tokens, int hidden, int rows) {  \
    __shared__ float partial[FEW_WARPS * ROWS * TOKENS * (WARP + 1)];                              \
    const T* const w = reinterpret_cast<const T*>(weight);                                         \
    if (hidden % EIGHT)                                                                            \
      few<false, TOKENS, ROWS>(x, w, out, tokens, hidden, rows, partial);                          \
    else                                                                                           \
      few<true, TOKENS, ROWS>(x, w, out, tokens, hidden, rows, partial);                           \
  }
FEW(linear_1, 1, 2)
FEW(linear_2, 2, 2)
FEW(linear_4, 4, 4)
FEW(linear_8, 8, 4)

// Many tokens: each thread multiplies THREAD_ROWS rows by THREAD_TOKENS tokens of the tile.
constexpr int THREAD_ROWS = 8, THREAD_TOKENS = 4;
static_assert(TILE / THREAD_ROWS * (TILE / THREAD_TOKENS) == TILE_THREADS);

struct Shared {
  __align__(16) float w[STEP * EIGHT][TILE], x[STEP * EIGHT][TILE];
};

template <int N>
static __device__ __forceinline__ void load_floats(const float* from, float (&to)[N]) {
#pragma unroll
  for (int i = 0; i < N; i += 4) {
    const float4 v = *reinterpret_cast<const float4*>(from + i);
    to[i] = v.x, to[i + 1] = v.y, to[i + 2] = v.z, to[i + 3] = v.w;
  }
}

template <bool WHOLE>
static __device__ __forceinline__ void many(const float* __restrict__ x,
                                            const T* __restrict__ weight, float* __restrict__ out,
                                            int tokens, int hidden, int rows, Shared& tile) {
  const int items = items_of(hidden), slot = threadIdx.x / TILE, own = threadIdx.x % TILE;
  const int tile_row = threadIdx.x / (TILE / THREAD_TOKENS) * THREAD_ROWS;
  const int tile_token = threadIdx.x % (TILE / THREAD_TOKENS) * THREAD_TOKENS;
  const int first_row = blockIdx.x * TILE + tile_row, first_token = blockIdx.y * TILE + tile_token;
  const bool works = first_row < rows && first_token < tokens;
  // rows and tokens beyond the last are the last again
  weight += static_cast<size_t>(min(static_cast<int>(blockIdx.x) * TILE + own, rows - 1)) * hidden;
  x += static_cast<size_t>(min(static_cast<int>(blockIdx.y) * TILE + own, tokens - 1)) * hidden;

  Walk bring(items), take(items);
  Run<T> w{};  // on their way from global to shared memory
  Run<float> v{};
  const auto fetch = [&] {
    for (int s = 0; s < STEP; ++s, bring.next()) {
      if (s != slot || !bring.inside()) continue;
      w = load_run<WHOLE>(weight, bring.item, hidden);
      v = load_run<WHOLE>(x, bring.item, hidden);
    }
  };

  float sums[THREAD_ROWS][THREAD_TOKENS] = {}, all[THREAD_ROWS][THREAD_TOKENS] = {};
  fetch();
  while (take.inside()) {
#pragma unroll
    for (int k = 0; k < EIGHT; ++k) {
      tile.w[slot * EIGHT + k][own] = w[k];
      tile.x[slot * EIGHT + k][own] = v[k];
    }
    __syncthreads();
    fetch();
    for (int s = 0; s < STEP && take.inside(); ++s, take.next()) {
      if (!works) continue;
#pragma unroll
      for (int k = s * EIGHT; k < s * EIGHT + EIGHT; ++k) {
        float a[THREAD_ROWS], b[THREAD_TOKENS];
        load_floats(tile.w[k] + tile_row, a);
        load_floats(tile.x[k] + tile_token, b);
#pragma unroll
        for (int r = 0; r < THREAD_ROWS; ++r)
#pragma unroll
          for (int t = 0; t < THREAD_TOKENS; ++t) sums[r][t] = fmaf(a[r], b[t], sums[r][t]);
      }
      if (!take.ends_chain()) continue;
#pragma unroll
      for (int r = 0; r < THREAD_ROWS; ++r)
#pragma unroll
        for (int t = 0; t < THREAD_TOKENS; ++t) {
          all[r][t] += sums[r][t];
          sums[r][t] = 0.f;
        }
    }
    __syncthreads();
  }

#pragma unroll
  for (int t = 0; t < THREAD_TOKENS; ++t)
#pragma unroll
    for (int r = 0; r < THREAD_ROWS; ++r)
      if (first_row + r < rows && first_token + t < tokens)
        out[static_cast<size_t>(first_token + t) * rows + first_row + r] = all[r][t];
}

extern "C" __global__ void __launch_bounds__(TILE_THREADS)
    linear_tiles(const float* x, const uint8_t* weight, float* out, int tokens, int hidden,
                 int rows) {
  __shared__ Shared tile;
  const T* const w = reinterpret_cast<const T*>(weight);
  if (hidden % EIGHT)
    many<false>(x, w, out, tokens, hidden, rows, tile);
  else
    many<true>(x, w, out, tokens, hidden, rows, tile);
}
