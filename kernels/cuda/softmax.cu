// Softmax of each row, one thread block per token: maximum, exponentials with their sum, division.
#include "portable.cuh"

extern "C" __global__ void softmax(const float* __restrict__ x, float* __restrict__ out, int tokens,
                                   int width) {
  __shared__ float partial[WARP];
  const size_t row = static_cast<size_t>(blockIdx.x) * width;
  float top = -INFINITY;
  for (int i = threadIdx.x; i < width; i += blockDim.x) top = fmaxf(top, x[row + i]);
  top = block_reduce(top, partial, Max());
  float sum = 0.f;
  for (int i = threadIdx.x; i < width; i += blockDim.x) {
    const float power = expf(x[row + i] - top);
    out[row + i] = power;
    sum += power;
  }
  sum = block_reduce(sum, partial, Sum());
  for (int i = threadIdx.x; i < width; i += blockDim.x) out[row + i] /= sum;
}
