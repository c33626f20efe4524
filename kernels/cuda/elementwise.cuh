// Element-wise maps with four consecutive elements per thread; those past the end read as zero.
#pragma once
#include "portable.cuh"

struct Four {
  float at[4];
};

// Index of this thread's first element.
static __device__ __forceinline__ size_t own_four() {
  return 4 * (static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x);
}

static __device__ __forceinline__ Four load_four(const float* x, size_t first, size_t end) {
  if (first + 4 <= end) {
    const float4 v = *reinterpret_cast<const float4*>(x + first);
    return {v.x, v.y, v.z, v.w};
  }
  Four four;
  for (int k = 0; k < 4; ++k) four.at[k] = first + k < end ? x[first + k] : 0.f;
  return four;
}

static __device__ __forceinline__ void store_four(float* out, size_t first, size_t end, Four four) {
  if (first + 4 <= end) {
    *reinterpret_cast<float4*>(out + first) = {four.at[0], four.at[1], four.at[2], four.at[3]};
    return;
  }
  for (int k = 0; k < 4; ++k)
    if (first + k < end) out[first + k] = four.at[k];
}

// out[i] = of(x[i])
template <class Of>
static __device__ __forceinline__ void map(const float* x, float* out, size_t size, Of of) {
  const size_t first = own_four();
  Four four = load_four(x, first, size);
  for (int k = 0; k < 4; ++k) four.at[k] = of(four.at[k]);
  store_four(out, first, size, four);
}

// out[i] = of(x[i], y[i])
template <class Of>
static __device__ __forceinline__ void map(const float* x, const float* y, float* out, size_t size,
                                           Of of) {
  const size_t first = own_four();
  Four four = load_four(x, first, size);
  const Four other = load_four(y, first, size);
  for (int k = 0; k < 4; ++k) four.at[k] = of(four.at[k], other.at[k]);
  store_four(out, first, size, four);
}
