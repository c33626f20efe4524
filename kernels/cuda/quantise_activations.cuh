// Quantization of activations to int8 by blocks of 32 or 256: scale = max|x| / 127, and x / scale
// is rounded half away from zero.
#pragma once
#include "elementwise.cuh"

constexpr int LANES = 8;  // per block of 32

struct Rounding {
  float scale, inverse;
  bool zeros;  // scale is 0, NaN, or too small: all codes are 0

  // `bits`: the largest |x| of the block, as bits. Without their signs floats are ordered as their
  // bits are: NaN above infinity above finite numbers.
  __device__ explicit Rounding(int bits) {
    scale = bits < 0x7f800000 ? __int_as_float(bits) / 127.f : __int_as_float(0x7fc00000);
    inverse = 1.f / scale;
    zeros = !(inverse < INFINITY);
  }

  // No FMA: product and sum are rounded separately, or bits would differ.
  __device__ int operator()(float x) const {
    if (zeros) return 0;
    const float scaled = __fmul_rn(x, inverse);
    return static_cast<int>(__fadd_rn(scaled, copysignf(0.5f, scaled)));
  }
};

static __device__ __forceinline__ int without_sign(float x) { return __float_as_int(x) & 0x7fffffff; }

// Stores four activations of a block of 32, at index `first` of all tokens' rows. Eight adjacent
// lanes hold the block; all lanes of the warp must participate.
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

// Quantizes four activations per thread with a scale per TOGETHER elements: 32, or 256 in two
// adjacent warps; then all threads participate, and `largest` is shared memory of one int per warp.
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

// Quantizes one activation per lane: a warp holds a block of 32.
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
