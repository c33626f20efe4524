// A block of threads for each token.
#include "portable.cuh"

extern "C" __global__ void rms_norm(const float* __restrict__ x, const float* __restrict__ weight,
                                    double eps, float* __restrict__ out, int tokens, int hidden) {
  __shared__ float partial[WARP];
  const size_t row = static_cast<size_t>(blockIdx.x) * hidden;
  float squares = 0.f;
  for (int i = threadIdx.x; i < hidden; i += blockDim.x) squares += x[row + i] * x[row + i];
  squares = block_reduce(squares, partial, Sum());
  const float scale = rsqrtf(squares / hidden + static_cast<float>(eps));
  for (int i = threadIdx.x; i < hidden; i += blockDim.x)
    out[row + i] = x[row + i] * scale * weight[i];
}
