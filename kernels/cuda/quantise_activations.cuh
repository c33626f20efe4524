// A block of 32 activations rounded to int8: a number is x / scale, half away from zero, where scale
// is max|x| / 127.
#pragma once
#include "elementwise.cuh"

constexpr int LANES = 8;  // that have a block of 32

struct Rounding {
  float scale, inverse;
  bool zeros;  // where scale is 0, NaN, or too small

  // Of a block whose largest number has these `bits` without its sign: so floats stand in the order
  // of their bits, NaN above infinity above numbers.
  __device__ explicit Rounding(int bits) {
    scale = bits < 0x7f800000 ? __int_as_float(bits) / 127.f : __int_as_float(0x7fc00000);
    inverse = 1.f / scale;
    zeros = !(inverse < INFINITY);
  }

  // Rounded after the product and after the sum: fused, bits would differ.
  __device__ int operator()(float x) const {
    if (zeros) return 0;
    const float scaled = __fmul_rn(x, inverse);
    return static_cast<int>(__fadd_rn(scaled, copysignf(0.5f, scaled)));
  }
};

static __device__ __forceinline__ int without_sign(float x) { return __float_as_int(x) & 0x7fffffff; }

// Four activations of a block of 32, the first of which is element `first` of all tokens' rows, by
// each of the eight lanes side by side that have the block; all lanes of a warp come.
static __device__ __forceinline__ void put_four(const Four& x, size_t first, bool inside,
                                                const Rounding& rounding, int8_t* q, float* scale,
                                                int32_t* total) {
  uint32_t bytes = 0;
  int sum = 0;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const int number = rounding(x.at[k]);
    bytes |= (static_cast<uint32_t>(number) & 255u) << 8 * k;
    sum += number;
  }
  for (int m = LANES / 2; m; m /= 2) sum += __shfl_xor_sync(ALL, sum, m);
  if (!inside) return;
  *reinterpret_cast<uint32_t*>(q + first) = bytes;
  if (first % 32 == 0) {
    scale[first / 32] = rounding.scale;
    total[first / 32] = sum;
  }
}

static __device__ __forceinline__ int largest_bits(const Four& x) {
  int bits = 0;
#pragma unroll
  for (int k = 0; k < 4; ++k) bits = max(bits, without_sign(x.at[k]));
  return bits;
}

// The same with a scale for TOGETHER elements: 32, or 256 that two warps side by side have, where all
// threads of a block come and `largest` is shared memory of an element for each warp.
template <int TOGETHER>
static __device__ __forceinline__ void round_four(const Four& x, size_t first, bool inside,
                                                  int* largest, int8_t* q, float* scale,
                                                  int32_t* total) {
  int bits = largest_bits(x);
  for (int m = (TOGETHER == 32 ? LANES : WARP) / 2; m; m /= 2)
    bits = max(bits, __shfl_xor_sync(ALL, bits, m));
  if constexpr (TOGETHER == 256) {
    const int warp = threadIdx.x / WARP;
    if (threadIdx.x % WARP == 0) largest[warp] = bits;
    __syncthreads();
    bits = max(bits, largest[warp ^ 1]);
    __syncthreads();
  }
  put_four(x, first, inside, Rounding(bits), q, scale, total);
}

// One activation by each lane of a warp that has a block.
static __device__ __forceinline__ void round_one(float x, size_t at, int8_t* q, float* scale,
                                                 int32_t* total) {
  int bits = without_sign(x);
  for (int m = WARP / 2; m; m /= 2) bits = max(bits, __shfl_xor_sync(ALL, bits, m));
  const Rounding rounding(bits);
  const int number = rounding(x), sum = warp_sum(number);
  q[at] = static_cast<int8_t>(number);
  if (at % WARP == 0) {
    scale[at / WARP] = rounding.scale;
    total[at / WARP] = sum;
  }
}
