// Pairs of elements turned. Each product and sum is rounded alone, so that pairs of either kind are
// one formula, wherever it stands.
#pragma once
#include "portable.cuh"

static __device__ __forceinline__ float turned_first(float a, float b, float cosine, float sine) {
  return __fsub_rn(__fmul_rn(a, cosine), __fmul_rn(b, sine));
}

static __device__ __forceinline__ float turned_second(float a, float b, float cosine, float sine) {
  return __fadd_rn(__fmul_rn(a, sine), __fmul_rn(b, cosine));
}
