// add, mul, scale and softcap: four consecutive elements per thread; add_bias and mul_columns: one
// element per thread, with the token in blockIdx.x.
#include "elementwise.cuh"

extern "C" __global__ void add(const float* __restrict__ x, const float* __restrict__ y,
                               float* __restrict__ out, int tokens, int width) {
  map(x, y, out, static_cast<size_t>(tokens) * width, Sum());
}

struct Product {
  __device__ float operator()(float x, float y) const { return x * y; }
};

// Combines x with `columns`, broadcast over tokens.
template <class F>
__device__ void map_columns(const float* x, const float* columns, float* out, int width, F f) {
  const int i = blockIdx.y * blockDim.x + threadIdx.x;
  if (i >= width) return;
  const size_t at = static_cast<size_t>(blockIdx.x) * width + i;
  out[at] = f(x[at], columns[i]);
}

extern "C" __global__ void add_bias(const float* __restrict__ x,
                                    const float* __restrict__ bias,
                                    float* __restrict__ out, int tokens, int width) {
  map_columns(x, bias, out, width, Sum());
}

extern "C" __global__ void mul(const float* __restrict__ x, const float* __restrict__ y,
                               float* __restrict__ out, int tokens, int width) {
  map(x, y, out, static_cast<size_t>(tokens) * width, Product());
}

extern "C" __global__ void mul_columns(const float* __restrict__ x,
                                       const float* __restrict__ factors,
                                       float* __restrict__ out, int tokens, int width) {
  map_columns(x, factors, out, width, Product());
}

struct Times {
  float factor;
  __device__ float operator()(float x) const { return x * factor; }
};

extern "C" __global__ void scale(const float* __restrict__ x, double factor,
                                 float* __restrict__ out, int tokens, int width) {
  map(x, out, static_cast<size_t>(tokens) * width, Times{static_cast<float>(factor)});
}

struct Capped {
  float cap;
  __device__ float operator()(float x) const { return cap * tanhf(x / cap); }
};

extern "C" __global__ void softcap(const float* __restrict__ x, double cap,
                                   float* __restrict__ out, int tokens, int width) {
  map(x, out, static_cast<size_t>(tokens) * width, Capped{static_cast<float>(cap)});
}
