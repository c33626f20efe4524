// A block of threads for each token.
#include "rms_norm.cuh"

extern "C" __global__ void rms_norm(const float* __restrict__ x, const float* __restrict__ weight,
                                    double eps, float* __restrict__ out, int tokens, int hidden) {
  __shared__ float partial[WARP];
  const size_t row = static_cast<size_t>(blockIdx.x) * hidden;
  const float scale =
      scale_of(hidden, eps, partial, [&](int i) { return load_of_row(x + row, i, hidden); });
  for (int i = 4 * threadIdx.x; i < hidden; i += 4 * blockDim.x)
    store_of_row(out + row, i, hidden, normalised(x + row, weight, i, hidden, scale));
}
