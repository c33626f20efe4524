// linear with F32, F16 and BF16 weights in float32, without tensor cores.
#include "linear_float.cuh"

FEW(linear_1, false, 1, ROWS_OF_1)
FEW(linear_2, false, 2, ROWS_OF_2)
FEW(linear_4, false, 4, ROWS_OF_4)
FEW(linear_8, false, 8, ROWS_OF_8)

// Many tokens: tiles in shared memory, a register tile of THREAD_ROWS x THREAD_TOKENS per thread.
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
  // past the end, the last row and token again
  weight += static_cast<size_t>(min(static_cast<int>(blockIdx.x) * TILE + own, rows - 1)) * hidden;
  x += static_cast<size_t>(min(static_cast<int>(blockIdx.y) * TILE + own, tokens - 1)) * hidden;

  Walk ahead(items), take(items);
  Run<T> w{};  // prefetched from global memory
  Run<float> v{};
  const auto fetch = [&] {
    for (int s = 0; s < STEP; ++s, ahead.next()) {
      if (s != slot || !ahead.inside()) continue;
      w = load_run<WHOLE>(weight, ahead.item, hidden);
      v = load_run<WHOLE>(x, ahead.item, hidden);
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
  wait_for_previous();
  const T* const w = reinterpret_cast<const T*>(weight);
  if (hidden % EIGHT)
    many<false>(x, w, out, tokens, hidden, rows, tile);
  else
    many<true>(x, w, out, tokens, hidden, rows, tile);
}
