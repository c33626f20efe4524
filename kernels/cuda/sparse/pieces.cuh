// Vector loads and dequantisation for sparse_axpy, where rows are ALIGNED. A warp has 256 columns
// from `begin` on, a lane eight of them, adjacent by fours; it loads BATCH rows before it decodes
// the first. Values equal those of formats.cuh bit for bit.
#pragma once
#include "formats.cuh"
#include "sparse_axpy.cuh"

template <class Format>
struct Pieces {
  static constexpr int ALIGNED = 0;
};

static __device__ __forceinline__ uint32_t half_word(const uint8_t* at) {
  return *reinterpret_cast<const uint16_t*>(at);
}

static __device__ __forceinline__ uint32_t word_of_halves(const uint8_t* at) {
  return half_word(at) | half_word(at + 2) << 16;
}

static __device__ __forceinline__ float half_of(uint32_t bits) {
  return to_float(half_t{static_cast<uint16_t>(bits)});
}

template <class Element>
struct Floats {
  static constexpr int ALIGNED = sizeof(uint4), BATCH = 4;
  static constexpr int LOADS = sizeof(Element) * COLUMNS / sizeof(uint4);
  union {
    uint4 loads[LOADS];
    Element elements[COLUMNS];
  };

  static __device__ __forceinline__ int column(int lane, int k) { return lane * COLUMNS + k; }

  __device__ __forceinline__ void load(const uint8_t* row, int begin, int hidden, int lane) {
    const int first = begin + column(lane, 0);
    const uint4* const from = reinterpret_cast<const uint4*>(row + first * sizeof(Element));
#pragma unroll
    for (int i = 0; i < LOADS; ++i) loads[i] = first < hidden ? from[i] : uint4{};
  }

  __device__ __forceinline__ void decode(float (&w)[COLUMNS]) const {
#pragma unroll
    for (int k = 0; k < COLUMNS; ++k) w[k] = to_float(elements[k]);
  }
};

template <>
struct Pieces<f32> : Floats<float> {};
template <>
struct Pieces<f16> : Floats<half_t> {};
template <>
struct Pieces<bf16> : Floats<bfloat_t> {};

template <>
struct Pieces<q8_0> {
  static constexpr int ALIGNED = 2, BATCH = 4;
  uint32_t scale, low, high;

  static __device__ __forceinline__ int column(int lane, int k) { return lane * COLUMNS + k; }

  __device__ __forceinline__ void load(const uint8_t* row, int begin, int hidden, int lane) {
    const int first = begin + column(lane, 0);
    scale = low = high = 0;
    if (first >= hidden) return;
    const uint8_t* const block = row + static_cast<size_t>(first / q8_0::BLOCK) * q8_0::BYTES;
    const uint8_t* const quants = block + 2 + first % q8_0::BLOCK;
    scale = half_word(block);
    low = word_of_halves(quants);
    high = word_of_halves(quants + 4);
  }

  __device__ __forceinline__ void decode(float (&w)[COLUMNS]) const {
    const float d = half_of(scale);
#pragma unroll
    for (int k = 0; k < COLUMNS; ++k)
      w[k] = d * static_cast<int8_t>((k < 4 ? low : high) >> 8 * (k % 4));
  }
};

// A lane's four bytes: four columns in the low nibbles, those 16 further on in the high ones.
template <>
struct Pieces<q4_0> {
  static constexpr int ALIGNED = 2, BATCH = 4;
  uint32_t scale, both;

  static __device__ __forceinline__ int column(int lane, int k) {
    return lane / 4 * q4_0::BLOCK + lane % 4 * 4 + k / 4 * 16 + k % 4;
  }

  __device__ __forceinline__ void load(const uint8_t* row, int begin, int hidden, int lane) {
    const int first = begin + column(lane, 0);
    scale = both = 0;
    if (first >= hidden) return;
    const uint8_t* const block = row + static_cast<size_t>(first / q4_0::BLOCK) * q4_0::BYTES;
    scale = half_word(block);
    both = word_of_halves(block + 2 + first % q4_0::BLOCK);
  }

  __device__ __forceinline__ void decode(float (&w)[COLUMNS]) const {
    const float d = half_of(scale);
#pragma unroll
    for (int k = 0; k < COLUMNS; ++k)
      w[k] = d * (static_cast<int>(both >> (8 * (k % 4) + k / 4 * 4) & 15) - 8);
  }
};

// A lane's four bytes: four columns of a sub-block in the low nibbles, of the next in the high.
template <>
struct Pieces<q4_k> {
  static constexpr int ALIGNED = sizeof(uint4), BATCH = 4;
  static_assert(q4_k::BLOCK == WIDTH, "a block of threads has a block of columns");
  uint32_t scales, both;
  int six_bits[4];  // scale and minimum of both parts

  static __device__ __forceinline__ int column(int lane, int k) {
    return lane / 8 * 64 + lane % 8 * 4 + k / 4 * 32 + k % 4;
  }

  __device__ __forceinline__ void load(const uint8_t* row, int begin, int, int lane) {
    const uint8_t* const block = row + static_cast<size_t>(begin / q4_k::BLOCK) * q4_k::BYTES;
    scales = *reinterpret_cast<const uint32_t*>(block);
    both = reinterpret_cast<const uint32_t*>(block + 16)[lane];
#pragma unroll
    for (int p = 0; p < 2; ++p) {
      six_bits[2 * p] = six_bit_scale(block + 4, lane / 8 * 2 + p);
      six_bits[2 * p + 1] = six_bit_minimum(block + 4, lane / 8 * 2 + p);
    }
  }

  __device__ __forceinline__ void decode(float (&w)[COLUMNS]) const {
    const float d = half_of(scales), dmin = half_of(scales >> 16);
#pragma unroll
    for (int p = 0; p < 2; ++p) {
      const float factor = d * six_bits[2 * p], offset = dmin * six_bits[2 * p + 1];
#pragma unroll
      for (int k = 0; k < 4; ++k)
        w[4 * p + k] = factor * static_cast<int>(both >> (8 * k + 4 * p) & 15) - offset;
    }
  }
};
