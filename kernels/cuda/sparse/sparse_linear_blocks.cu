// sparse_linear with block-format weights and activations quantised to int8 (rows.cuh). An item is
// a part, 32 elements with one scale; its dot products are exact integers (dp4a).
#include "rows.cuh"

constexpr int PART = 32;        // elements
constexpr int WORDS = PART / 4;  // of four int8

// A part in a lane's registers: element = factor * (byte - ZERO_POINT) - offset.
struct Part {
  uint32_t words[WORDS];
  float factor, offset;
};

static __device__ __forceinline__ uint32_t half_word(const uint8_t* at) {
  return *reinterpret_cast<const uint16_t*>(at);
}

static __device__ __forceinline__ uint32_t word(const uint8_t* at) {
  return half_word(at) | half_word(at + 2) << 16;
}

static __device__ __forceinline__ float half_at(const uint8_t* at) {
  return to_float(*reinterpret_cast<const half_t*>(at));
}

struct q8_0 {
  static constexpr int PARTS = 1, BYTES = 34, ZERO_POINT = 0;
  static constexpr bool MINS = false;

  static __device__ __forceinline__ Part part(const uint8_t* block, int) {
    Part found;
    found.factor = half_at(block);
#pragma unroll
    for (int i = 0; i < WORDS; ++i) found.words[i] = word(block + 2 + 4 * i);
    return found;
  }
};

struct q4_0 {
  static constexpr int PARTS = 1, BYTES = 18, ZERO_POINT = 8;
  static constexpr bool MINS = false;

  static __device__ __forceinline__ Part part(const uint8_t* block, int) {
    Part found;
    found.factor = half_at(block);
#pragma unroll
    for (int i = 0; i < WORDS / 2; ++i) {
      const uint32_t both = word(block + 2 + 4 * i);
      found.words[i] = both & 0x0f0f0f0fu;
      found.words[i + WORDS / 2] = both >> 4 & 0x0f0f0f0fu;
    }
    return found;
  }
};

struct q4_k {
  static constexpr int PARTS = 8, BYTES = 144, ZERO_POINT = 0;
  static constexpr bool MINS = true;

  static __device__ __forceinline__ Part part(const uint8_t* block, int p) {
    Part found;
    const uint8_t* const six = block + 4;  // 6-bit scales and minimums
    int scale, minimum;
    if (p < 4) {
      scale = six[p] & 63;
      minimum = six[p + 4] & 63;
    } else {
      scale = (six[p + 4] & 15) | six[p - 4] >> 6 << 4;
      minimum = six[p + 4] >> 4 | six[p] >> 6 << 4;
    }
    found.factor = half_at(block) * scale;
    found.offset = half_at(block + 2) * minimum;
#pragma unroll
    for (int i = 0; i < WORDS; ++i) {
      const uint32_t both = *reinterpret_cast<const uint32_t*>(block + 16 + p / 2 * PART + 4 * i);
      found.words[i] = both >> 4 * (p % 2) & 0x0f0f0f0fu;
    }
    return found;
  }
};

// Quantised activations: elements q * scale, and each block's sum of q.
struct Rounded {
  const int8_t* __restrict__ q;
  const float* __restrict__ scale;
  const int* __restrict__ total;
  int parts;  // of a token
};

// Adds the products of a part of each row with the same part of the tokens.
template <int TOKENS>
static __device__ __forceinline__ void dot_part(const Part (&rows)[ROWS], const Rounded& x,
                                                 int first, int tokens, int part,
                                                 float (&sums)[ROWS][TOKENS]) {
#pragma unroll
  for (int t = 0; t < TOKENS; ++t) {
    if (t >= tokens) break;
    const size_t at = static_cast<size_t>(first + t) * x.parts + part;
    uint32_t words[WORDS];
    load_words<WORDS>(reinterpret_cast<const uint32_t*>(x.q + at * PART), words);
    const float scale = x.scale[at];
    const int total = FORMAT::ZERO_POINT || FORMAT::MINS ? x.total[at] : 0;
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      int dot = -FORMAT::ZERO_POINT * total;
#pragma unroll
      for (int i = 0; i < WORDS; ++i) dot = dot4(rows[r].words[i], words[i], dot);
      sums[r][t] = fmaf(rows[r].factor * scale, static_cast<float>(dot), sums[r][t]);
      if (FORMAT::MINS)
        sums[r][t] = fmaf(-rows[r].offset, scale * static_cast<float>(total), sums[r][t]);
    }
  }
}

constexpr int TILE = WARP / FORMAT::PARTS * FORMAT::BYTES;  // bytes: a part per lane

template <int TOKENS>
static __device__ __forceinline__ void multiply(const Rounded& x, const Weight& weight,
                                                const Active& active, uint4* tiles, float* partial,
                                                int tokens, float* __restrict__ out) {
  const auto dot = [&](const uint8_t* own, int tile, int first, int some, auto& sums) {
    const int lane = threadIdx.x % WARP, part = tile * WARP + lane;
    if (part >= x.parts) return;
    Part parts[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
      parts[r] = FORMAT::part(own + r * TILE + lane / FORMAT::PARTS * FORMAT::BYTES,
                              lane % FORMAT::PARTS);
    dot_part<TOKENS>(parts, x, first, some, part, sums);
  };
  const int row_bytes = x.parts / FORMAT::PARTS * FORMAT::BYTES;
  dot_rows<TOKENS, TILE>(weight, row_bytes, active, tiles, partial, tokens, out, dot);
}

#define SPARSE_LINEAR(name, TOKENS, BLOCKS)                                                       \
  extern "C" __global__ void __launch_bounds__(WARPS * WARP, BLOCKS)                              \
      name(const int8_t* q, const float* scale, const int* total, const uint8_t* weight,          \
           const uint8_t* mask, const int* rows, const int* count, const int* slots, float* out,  \
           int tokens, int hidden, int held, int stride, int neurons) {                           \
    __shared__ uint4 tiles[TILES<TILE>];                                                          \
    __shared__ float partial[PARTIALS<TOKENS>];                                                   \
    multiply<TOKENS>({q, scale, total, hidden / PART}, {weight, slots, stride},                   \
                     {mask, rows, *count, neurons}, tiles, partial, tokens, out);                 \
  }
SPARSE_LINEAR(sparse_linear_1, 1, 3)
SPARSE_LINEAR(sparse_linear_8, 8, 2)
