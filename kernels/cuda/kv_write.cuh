// Encoders of KV cache formats, one element per lane: a warp encodes a block of 32.
#pragma once
#include "formats.cuh"

static __device__ __forceinline__ void put_half(uint8_t* at, half_t value) {
  *reinterpret_cast<uint16_t*>(at) = value.bits;
}

// 1 / d, or 0 if that is not finite.
static __device__ __forceinline__ float inverse(float d) {
  const float each = 1.f / d;
  return fabsf(each) < INFINITY ? each : 0.f;
}

template <class Format>
struct Encoder;

template <>
struct Encoder<f32> {
  static __device__ void write(float x, uint8_t* row, int i) {
    reinterpret_cast<float*>(row)[i] = x;
  }
};

template <>
struct Encoder<f16> {
  static __device__ void write(float x, uint8_t* row, int i) { put_half(row + 2 * i, to_half(x)); }
};

// Scale max|x| / 127; integers are rounded half away from zero.
template <>
struct Encoder<q8_0> {
  static __device__ void write(float x, uint8_t* row, int i) {
    uint8_t* const block = row + i / WARP * q8_0::BYTES;
    const float d = warp_max(fabsf(x)) / 127.f;
    if (i % WARP == 0) put_half(block, to_half(d));
    const float scaled = __fmul_rn(x, inverse(d));
    const int q = static_cast<int>(__fadd_rn(scaled, copysignf(0.5f, scaled)));
    block[2 + i % WARP] = static_cast<uint8_t>(q);
  }
};

// Scale: the value of largest magnitude (the first of equals) / -8;
// byte j holds elements j and j + 16.
template <>
struct Encoder<q4_0> {
  static __device__ void write(float x, uint8_t* row, int i) {
    uint8_t* const block = row + i / WARP * q4_0::BYTES;
    const float largest = warp_max(fabsf(x));
    const int first = __ffs(__ballot_sync(ALL, fabsf(x) == largest)) - 1;
    const float d = __shfl_sync(ALL, x, first) / -8.f;
    if (i % WARP == 0) put_half(block, to_half(d));
    const int q = min(15, static_cast<int>(__fadd_rn(__fmul_rn(x, inverse(d)), 8.5f)));
    const int other = __shfl_down_sync(ALL, q, WARP / 2);
    if (i % WARP < WARP / 2) block[2 + i % WARP] = static_cast<uint8_t>(q | other << 4);
  }
};

// Stores element i of a token's row of `width` in a cell; block formats need whole warps.
static __device__ __forceinline__ void write_to_cell(float x, uint8_t* cache, int cell, int width,
                                                     int i) {
  const size_t row_bytes = static_cast<size_t>(width / FORMAT::BLOCK) * FORMAT::BYTES;
  Encoder<FORMAT>::write(x, cache + cell * row_bytes, i);
}
