// Active neurons' rows of floats: a warp for ROWS rows, a lane for a unit, 8 elements, of every
// 32nd.
#include "rows.cuh"

constexpr int UNIT = 8;

struct f32 {
  using Element = float;
};
struct f16 {
  using Element = half_t;
};
struct bf16 {
  using Element = bfloat_t;
};
using Element = FORMAT::Element;
constexpr int TILE = WARP * UNIT * sizeof(Element);

// A unit of ROWS rows and the same of a token, of which `size` elements are there.
static __device__ __forceinline__ void meet(const Element* const (&units)[ROWS],
                                            const float* __restrict__ x, int size,
                                            float (&sums)[ROWS]) {
  for (int k = 0; k < size; ++k)
#pragma unroll
    for (int r = 0; r < ROWS; ++r) sums[r] = fmaf(to_float(units[r][k]), x[k], sums[r]);
}

// The same for whole units of tokens that are aligned.
template <int TOKENS>
static __device__ __forceinline__ void meet_whole(const Element* const (&units)[ROWS],
                                                  const float* __restrict__ x, int hidden,
                                                  int tokens, float (&sums)[TOKENS][ROWS]) {
  constexpr int LOADS = sizeof(Element) * UNIT / sizeof(uint4);
  union {
    uint4 loads[LOADS];
    Element elements[UNIT];
  } w[ROWS];
#pragma unroll
  for (int r = 0; r < ROWS; ++r)
#pragma unroll
    for (int i = 0; i < LOADS; ++i)
      w[r].loads[i] = reinterpret_cast<const uint4*>(units[r])[i];
#pragma unroll
  for (int t = 0; t < TOKENS; ++t) {
    if (t >= tokens) break;
    const float4* const own = reinterpret_cast<const float4*>(x + static_cast<size_t>(t) * hidden);
    const float4 low = own[0], high = own[1];
    const float some[UNIT] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
    for (int k = 0; k < UNIT; ++k)
#pragma unroll
      for (int r = 0; r < ROWS; ++r)
        sums[t][r] = fmaf(to_float(w[r].elements[k]), some[k], sums[t][r]);
  }
}

template <int TOKENS>
static __device__ __forceinline__ void multiply(const float* __restrict__ x, int hidden,
                                                const Weight& weight, const Active& active,
                                                uint4* shared, int tokens,
                                                float* __restrict__ out) {
  const int lane = threadIdx.x % WARP;
  const bool vectors = hidden % 4 == 0;
  meet_rows<TOKENS, TILE>(
      weight, hidden * sizeof(Element), active, reinterpret_cast<uint8_t*>(shared), tokens, out,
      [&](const uint8_t* tiles, int tile, int first, int some, auto& sums) {
        const int begin = (tile * WARP + lane) * UNIT, size = min(UNIT, hidden - begin);
        const Element* units[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
          units[r] = reinterpret_cast<const Element*>(tiles + r * TILE) + lane * UNIT;
        const float* const own = x + static_cast<size_t>(first) * hidden + begin;
        if (size == UNIT && vectors) return meet_whole<TOKENS>(units, own, hidden, some, sums);
#pragma unroll
        for (int t = 0; t < TOKENS; ++t)
          if (t < some) meet(units, own + static_cast<size_t>(t) * hidden, size, sums[t]);
      });
}

#define SPARSE_LINEAR(TOKENS)                                                                     \
  extern "C" __global__ void __launch_bounds__(WARPS* WARP, TOKENS == 1 ? 3 : 2) sparse_linear_##TOKENS(               \
      const float* __restrict__ x, const uint8_t* __restrict__ weight,                            \
      const uint8_t* __restrict__ mask, const int* __restrict__ rows,                             \
      const int* __restrict__ count, const int* __restrict__ slots, float* __restrict__ out,      \
      int tokens, int hidden, int held, int stride, int neurons) {                                \
    __shared__ uint4 shared[WARPS * ROWS * TILE / sizeof(uint4)];                                 \
    multiply<TOKENS>(x, hidden, {weight, slots, static_cast<size_t>(stride)},                     \
                     {mask, rows, *count, neurons}, shared, tokens, out);                         \
  }

SPARSE_LINEAR(1)
SPARSE_LINEAR(8)
