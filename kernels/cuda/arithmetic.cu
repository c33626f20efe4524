// add and scale: a thread for each four elements; add_bias: one for each element of a token's row.
#include "elementwise.cuh"

extern "C" __global__ void add(const float* __restrict__ x, const float* __restrict__ y,
                               float* __restrict__ out, int tokens, int width) {
  map(x, y, out, static_cast<size_t>(tokens) * width, Sum());
}

extern "C" __global__ void add_bias(const float* __restrict__ x, const float* __restrict__ bias,
                                    float* __restrict__ out, int tokens, int width) {
  const int i = blockIdx.y * blockDim.x + threadIdx.x;
  if (i >= width) return;
  const size_t at = static_cast<size_t>(blockIdx.x) * width + i;
  out[at] = x[at] + bias[i];
}

struct Times {
  float factor;
  __device__ float operator()(float x) const { return x * factor; }
};

extern "C" __global__ void scale(const float* __restrict__ x, double factor,
                                 float* __restrict__ out, int tokens, int width) {
  map(x, out, static_cast<size_t>(tokens) * width, Times{static_cast<float>(factor)});
}
