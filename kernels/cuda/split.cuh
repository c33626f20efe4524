// Splits float32 into sums of two float16 or three bfloat16, which tensor cores multiply.
#pragma once
#include "portable.cuh"

// The power of 2 that scales |x| below 2^15, and its inverse.
struct Power {
  float shrink, grow;

  __device__ explicit Power(float largest) {
    const int exponent = max(static_cast<int>(__float_as_uint(largest) >> 23) - 127, -112);
    shrink = __uint_as_float(static_cast<uint32_t>(127 + 14 - exponent) << 23);
    grow = __uint_as_float(static_cast<uint32_t>(127 - 14 + exponent) << 23);
  }
};

// Splits two numbers into upper and lower float16 parts, packed in pairs.
static __device__ __forceinline__ void split_in_two(float x, float y, uint32_t& upper, uint32_t& lower) {
  upper = to_halves(x, y);
  lower = to_halves(x - to_float(half_t{static_cast<uint16_t>(upper)}),
                    y - to_float(half_t{static_cast<uint16_t>(upper >> 16)}));
}

// Splits two numbers into three bfloat16 parts each, packed in pairs.
static __device__ __forceinline__ void split_in_three(float x, float y, uint32_t (&parts)[3]) {
#pragma unroll
  for (int p = 0; p < 3; ++p) {
    parts[p] = to_bfloats(x, y);
    x -= __uint_as_float(parts[p] << 16);
    y -= __uint_as_float(parts[p] & ~65535u);
  }
}
