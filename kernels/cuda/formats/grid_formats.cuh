// IQ1 to IQ3 (codebook formats), like formats.cuh: a sub-block's scale is an odd integer, a group's
// index selects a grid point with values in eighths.
#pragma once
#include "formats.cuh"
#include "grids.cuh"

// Magnitude of an element of a grid point of IQ2, and of IQ3.
static __device__ __forceinline__ int of_three(uint16_t group, int i) {
  const int code = group >> (2 * i) & 3;
  return code == 0 ? 8 : code == 1 ? 25 : 43;
}

static __device__ __forceinline__ int of_eight(uint16_t group, int i) {
  return 8 + 16 * (group >> (3 * i) & 7);
}

static __device__ __forceinline__ int with_sign(int magnitude, uint32_t signs, int i) {
  return signs >> i & 1 ? -magnitude : magnitude;
}

// Seven sign bits, and an eighth that makes the parity even.
static __device__ __forceinline__ uint32_t even(uint32_t sevens) {
  return sevens | (__popc(sevens) & 1u) << 7;
}

static __device__ __forceinline__ float scaled(float d, uint32_t part, int eighths) {
  return d * 0.125f * static_cast<int>(2 * part + 1) * eighths;
}

struct iq2_xxs {
  static constexpr int BLOCK = 256, BYTES = 66;
  static __device__ __forceinline__ float element(const uint8_t* block, int i) {
    const uint8_t* const part = block + 2 + i / 32 * 8;
    const uint32_t upper = word32(part + 4);
    const int magnitude = of_three(IQ2_XXS_GRID[part[i / 8 % 4]], i % 8);
    const uint32_t signs = even(upper >> (7 * (i / 8 % 4)) & 127);
    return scaled(half_at(block), upper >> 28, with_sign(magnitude, signs, i % 8));
  }
};

struct iq2_xs {
  static constexpr int BLOCK = 256, BYTES = 74;
  static __device__ __forceinline__ float element(const uint8_t* block, int i) {
    const uint32_t group = word16(block + 2 + i / 8 * 2);
    const int magnitude = of_three(IQ2_XS_GRID[group & 511], i % 8);
    const int eighths = with_sign(magnitude, even(group >> 9), i % 8);
    return scaled(half_at(block), field<4, 1>(block + 66, i / 16), eighths);
  }
};

struct iq2_s {
  static constexpr int BLOCK = 256, BYTES = 82;
  static __device__ __forceinline__ float element(const uint8_t* block, int i) {
    const int group = i / 8;
    const int index = block[2 + group] | field<2, 1>(block + 66, group) << 8;
    const int eighths = with_sign(of_three(IQ2_S_GRID[index], i % 8), block[34 + group], i % 8);
    return scaled(half_at(block), field<4, 1>(block + 74, i / 16), eighths);
  }
};

struct iq3_xxs {
  static constexpr int BLOCK = 256, BYTES = 98;
  static __device__ __forceinline__ float element(const uint8_t* block, int i) {
    const uint32_t upper = word32(block + 66 + i / 32 * 4);
    const uint32_t signs = even(upper >> (7 * (i / 8 % 4)) & 127);
    const int plain = of_eight(IQ3_XXS_GRID[block[2 + i / 4]], i % 4);
    const int magnitude = plain == 120 ? 124 : plain;
    return scaled(half_at(block), upper >> 28, with_sign(magnitude, signs, i % 8));
  }
};

struct iq3_s {
  static constexpr int BLOCK = 256, BYTES = 110;
  static __device__ __forceinline__ float element(const uint8_t* block, int i) {
    const int group = i / 4;
    const int index = block[2 + group] | field<1, 1>(block + 66, group) << 8;
    const int eighths = with_sign(of_eight(IQ3_S_GRID[index], i % 4), block[74 + i / 8], i % 8);
    return scaled(half_at(block), field<4, 1>(block + 106, i / 32), eighths);
  }
};

// IQ1's ternary value in eighths (-8, 0 or 8), shifted by one up or down.
static __device__ __forceinline__ int moved(uint16_t group, int i, uint32_t down) {
  return 8 * ((group >> (2 * i) & 3) - 1) + (down ? -1 : 1);
}

struct iq1_s {
  static constexpr int BLOCK = 256, BYTES = 50;
  static __device__ __forceinline__ float element(const uint8_t* block, int i) {
    const int group = i / 8;
    const uint32_t upper = word16(block + 34 + i / 32 * 2);
    const uint32_t index = block[2 + group] | (upper >> (3 * (group % 4)) & 7) << 8;
    return scaled(half_at(block), upper >> 12 & 7, moved(IQ1_GRID[index], i % 8, upper >> 15));
  }
};

struct iq1_m {
  static constexpr int BLOCK = 256, BYTES = 56;
  static __device__ __forceinline__ float element(const uint8_t* block, int i) {
    const int group = i / 8, part = i / 16;
    const uint32_t upper = field<4, 1>(block + 32, group);
    const uint32_t index = block[group] | (upper & 7) << 8;
    const uint32_t scale = word16(block + 48 + part / 4 * 2) >> (3 * (part % 4)) & 7;
    const uint8_t d[2] = {static_cast<uint8_t>(block[49] >> 4 | (block[51] & 0xf0)),
                          static_cast<uint8_t>(block[53] >> 4 | (block[55] & 0xf0))};
    return scaled(half_at(d), scale, moved(IQ1_GRID[index], i % 8, upper >> 3));
  }
};
