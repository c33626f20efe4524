// Layer norm, one thread block per token. The mean takes two passes, the second over x - mean, so
// that a mean far from zero costs no precision.
#include "portable.cuh"

extern "C" __global__ void layer_norm(const float* __restrict__ x, const float* __restrict__ weight,
                                      const float* __restrict__ bias, double eps,
                                      float* __restrict__ out, int tokens, int hidden) {
  __shared__ float partial[WARP];
  const size_t row = static_cast<size_t>(blockIdx.x) * hidden;
  float mean = 0.f;
  for (int pass = 0; pass < 2; ++pass) {
    float sum = 0.f;
    for (int i = threadIdx.x; i < hidden; i += blockDim.x) sum += x[row + i] - mean;
    mean += block_reduce(sum, partial, Sum()) / hidden;
  }
  float squares = 0.f;
  for (int i = threadIdx.x; i < hidden; i += blockDim.x) {
    const float centred = x[row + i] - mean;
    squares += centred * centred;
  }
  const float variance = block_reduce(squares, partial, Sum()) / hidden;
  const float scale = 1.f / sqrtf(variance + static_cast<float>(eps));
  for (int i = threadIdx.x; i < hidden; i += blockDim.x)
    out[row + i] = (x[row + i] - mean) * scale * weight[i] + bias[i];
}
