// Eight lanes for each block of 32 activations, four of which a lane reads at once.
#include "portable.cuh"

constexpr int LANES = 8;

// Half away from zero. Rounded after the product and after the sum: fused, bits would differ.
static __device__ __forceinline__ int nearest(float x, float inverse) {
  const float scaled = __fmul_rn(x, inverse);
  return static_cast<int>(__fadd_rn(scaled, copysignf(0.5f, scaled)));
}

extern "C" __global__ void quantise_activations(const float* __restrict__ x, int8_t* __restrict__ q,
                                                float* __restrict__ scale,
                                                int32_t* __restrict__ total, int tokens,
                                                int hidden) {
  const size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const bool inside = i < static_cast<size_t>(tokens) * hidden / 4;
  const float4 v = inside ? reinterpret_cast<const float4*>(x)[i] : float4{};

  // Without their signs floats stand in the order of their bits, NaN above infinity above numbers.
  int bits = __float_as_int(v.x) & 0x7fffffff;
  bits = max(bits, __float_as_int(v.y) & 0x7fffffff);
  bits = max(bits, __float_as_int(v.z) & 0x7fffffff);
  bits = max(bits, __float_as_int(v.w) & 0x7fffffff);
  for (int m = LANES / 2; m; m /= 2) bits = max(bits, __shfl_xor_sync(ALL, bits, m));
  const bool finite = bits < 0x7f800000;

  const float d = finite ? __int_as_float(bits) / 127.f : __int_as_float(0x7fc00000);
  const float inverse = 1.f / d;
  const bool zeros = !(inverse < INFINITY);  // where d is 0, NaN, or too small
  uint32_t bytes = 0;
  int sum = 0;
  const float four[4] = {v.x, v.y, v.z, v.w};
  for (int k = 0; k < 4; ++k) {
    const int number = zeros ? 0 : nearest(four[k], inverse);
    bytes |= (static_cast<uint32_t>(number) & 255u) << 8 * k;
    sum += number;
  }
  for (int m = LANES / 2; m; m /= 2) sum += __shfl_xor_sync(ALL, sum, m);
  if (!inside) return;
  reinterpret_cast<uint32_t*>(q)[i] = bytes;
  if (i % LANES == 0) {
    scale[i / LANES] = d;
    total[i / LANES] = sum;
  }
}
