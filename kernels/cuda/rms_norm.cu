// RMS norm, one thread block per token.
#include "rms_norm.cuh"

extern "C" __global__ void __launch_bounds__(ROW_THREADS)
    rms_norm(const float* __restrict__ x, const float* __restrict__ weight, double eps,
             float* __restrict__ out, int tokens, int hidden) {
  __shared__ float partial[WARP];
  wait_for_previous();
  const size_t row = static_cast<size_t>(blockIdx.x) * hidden;
  FirstFour kept;
  const float factor = factor_of(weight, hidden, eps, partial, kept,
                                 [&](int i) { return load_of_row(x + row, i, hidden); });
  for (int i = 4 * threadIdx.x; i < hidden; i += 4 * blockDim.x)
    store_of_row(out + row, i, hidden, normalised(x + row, weight, i, hidden, factor, kept));
}
