// RoPE rotation of a pair. Products and sums are rounded separately (no FMA), so that all kernels
// give the same bits wherever this is inlined.
#pragma once
#include "portable.cuh"

static __device__ __forceinline__ float rotated_first(float a, float b, float cosine, float sine) {
  return __fsub_rn(__fmul_rn(a, cosine), __fmul_rn(b, sine));
}

static __device__ __forceinline__ float rotated_second(float a, float b, float cosine, float sine) {
  return __fadd_rn(__fmul_rn(a, sine), __fmul_rn(b, cosine));
}
