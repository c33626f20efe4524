// Dequantisation of single elements, one struct per weight format (the macro FORMAT names one): a
// block has BLOCK elements in BYTES; `element` reads bytewise, so blocks may be unaligned. Coding
// as in reference/formats; IQ1 to IQ3 are in grid_formats.cuh.
#pragma once
#include "portable.cuh"

static __device__ __forceinline__ uint32_t word16(const uint8_t* at) {
  return at[0] | static_cast<uint32_t>(at[1]) << 8;
}

static __device__ __forceinline__ uint32_t word32(const uint8_t* at) {
  return word16(at) | word16(at + 2) << 16;
}

static __device__ __forceinline__ float half_at(const uint8_t* at) {
  return to_float(half_t{static_cast<uint16_t>(word16(at))});
}

// Bit field i of BITS bits, packed in runs of RUN bytes: first the lowest field of each byte of a
// run, then the second lowest, and so on.
template <int BITS, int RUN>
static __device__ __forceinline__ int field(const uint8_t* data, int i) {
  constexpr int SPAN = RUN * (8 / BITS);
  return data[i / SPAN * RUN + i % RUN] >> (BITS * (i % SPAN / RUN)) & ((1 << BITS) - 1);
}

struct f32 {
  static constexpr int BLOCK = 1, BYTES = 4;
  static __device__ __forceinline__ float element(const uint8_t* block, int) {
    return __uint_as_float(word32(block));
  }
};

struct f16 {
  static constexpr int BLOCK = 1, BYTES = 2;
  static __device__ __forceinline__ float element(const uint8_t* block, int) {
    return half_at(block);
  }
};

struct bf16 {
  static constexpr int BLOCK = 1, BYTES = 2;
  static __device__ __forceinline__ float element(const uint8_t* block, int) {
    return to_float(bfloat_t{static_cast<uint16_t>(word16(block))});
  }
};

struct q8_0 {
  static constexpr int BLOCK = 32, BYTES = 34;
  static __device__ __forceinline__ float element(const uint8_t* block, int i) {
    return half_at(block) * static_cast<int8_t>(block[2 + i]);
  }
};

struct q4_0 {
  static constexpr int BLOCK = 32, BYTES = 18;
  static __device__ __forceinline__ float element(const uint8_t* block, int i) {
    return half_at(block) * (field<4, 16>(block + 2, i) - 8);
  }
};

struct q4_1 {
  static constexpr int BLOCK = 32, BYTES = 20;
  static __device__ __forceinline__ float element(const uint8_t* block, int i) {
    return half_at(block) * field<4, 16>(block + 4, i) + half_at(block + 2);
  }
};

struct q5_0 {
  static constexpr int BLOCK = 32, BYTES = 22;
  static __device__ __forceinline__ float element(const uint8_t* block, int i) {
    const int q = field<4, 16>(block + 6, i) | field<1, 1>(block + 2, i) << 4;
    return half_at(block) * (q - 16);
  }
};

struct q5_1 {
  static constexpr int BLOCK = 32, BYTES = 24;
  static __device__ __forceinline__ float element(const uint8_t* block, int i) {
    const int q = field<4, 16>(block + 8, i) | field<1, 1>(block + 4, i) << 4;
    return half_at(block) * q + half_at(block + 2);
  }
};

struct q2_k {
  static constexpr int BLOCK = 256, BYTES = 84;
  static __device__ __forceinline__ float element(const uint8_t* block, int i) {
    const int part = block[i / 16];
    const float scale = half_at(block + 80) * (part & 15);
    return scale * field<2, 32>(block + 16, i) - half_at(block + 82) * (part >> 4);
  }
};

struct q3_k {
  static constexpr int BLOCK = 256, BYTES = 110;
  static __device__ __forceinline__ float element(const uint8_t* block, int i) {
    const int part = field<4, 8>(block + 96, i / 16) | field<2, 4>(block + 104, i / 16) << 4;
    const int q = field<2, 32>(block + 32, i) | field<1, 32>(block, i) << 2;
    return half_at(block + 108) * (part - 32) * (q - 4);
  }
};

// 6-bit scale and minimum of a sub-block, packed eight and eight in twelve bytes (Q4_K, Q5_K).
static __device__ __forceinline__ int six_bit_scale(const uint8_t* packed, int part) {
  const int low = packed[part % 4];
  return part < 4 ? low & 63 : (packed[4 + part] & 15) | (low >> 2 & 48);
}

static __device__ __forceinline__ int six_bit_minimum(const uint8_t* packed, int part) {
  const int low = packed[4 + part % 4];
  return part < 4 ? low & 63 : packed[4 + part] >> 4 | (low >> 2 & 48);
}

static __device__ __forceinline__ float with_minimum(const uint8_t* block, int part, int q) {
  const float scale = half_at(block) * six_bit_scale(block + 4, part);
  return scale * q - half_at(block + 2) * six_bit_minimum(block + 4, part);
}

struct q4_k {
  static constexpr int BLOCK = 256, BYTES = 144;
  static __device__ __forceinline__ float element(const uint8_t* block, int i) {
    return with_minimum(block, i / 32, field<4, 32>(block + 16, i));
  }
};

struct q5_k {
  static constexpr int BLOCK = 256, BYTES = 176;
  static __device__ __forceinline__ float element(const uint8_t* block, int i) {
    const int q = field<4, 32>(block + 48, i) | field<1, 32>(block + 16, i) << 4;
    return with_minimum(block, i / 32, q);
  }
};

struct q6_k {
  static constexpr int BLOCK = 256, BYTES = 210;
  static __device__ __forceinline__ float element(const uint8_t* block, int i) {
    const int q = field<4, 64>(block, i) | field<2, 32>(block + 128, i) << 4;
    return half_at(block + 208) * static_cast<int8_t>(block[192 + i / 16]) * (q - 32);
  }
};

static __device__ const int8_t NL[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                         1,    13,   25,  38,  53,  69,  89,  113};

struct iq4_nl {
  static constexpr int BLOCK = 32, BYTES = 18;
  static __device__ __forceinline__ float element(const uint8_t* block, int i) {
    return half_at(block) * NL[field<4, 16>(block + 2, i)];
  }
};

struct iq4_xs {
  static constexpr int BLOCK = 256, BYTES = 136;
  static __device__ __forceinline__ float element(const uint8_t* block, int i) {
    const int part = field<4, 1>(block + 4, i / 32) | field<2, 1>(block + 2, i / 32) << 4;
    return half_at(block) * (part - 32) * NL[field<4, 16>(block + 8, i)];
  }
};

// Twice the E2M1 values, since the scale is half of OCP's E8M0.
static __device__ const int8_t FP4[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                          0, -1, -2, -3, -4, -6, -8, -12};

struct mxfp4 {
  static constexpr int BLOCK = 32, BYTES = 17;
  static __device__ __forceinline__ float element(const uint8_t* block, int i) {
    const uint32_t e = block[0];  // 2^(e - 128), subnormal for e < 2
    const float scale = __uint_as_float(e < 2 ? 0x00200000u << e : (e - 1) << 23);
    return scale * FP4[field<4, 16>(block + 1, i)];
  }
};

struct tq1_0 {
  static constexpr int BLOCK = 256, BYTES = 54;
  static __device__ __forceinline__ float element(const uint8_t* block, int i) {
    constexpr int POWERS[5] = {1, 3, 9, 27, 81};
    const int at = i < 160 ? i % 32 : i < 240 ? 32 + i % 16 : 48 + i % 4;
    const int digit = i < 160 ? i / 32 : i < 240 ? (i - 160) / 16 : (i - 240) / 4;
    const int left = block[at] * POWERS[digit] & 255;
    return half_at(block + 52) * ((left * 3 >> 8) - 1);
  }
};

struct tq2_0 {
  static constexpr int BLOCK = 256, BYTES = 66;
  static __device__ __forceinline__ float element(const uint8_t* block, int i) {
    return half_at(block + 64) * (field<2, 32>(block, i) - 1);
  }
};
