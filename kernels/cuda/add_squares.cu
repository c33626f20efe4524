// Adds x^2 to float64 sums per column (imatrix). One thread per column adds tokens in order, so
// that batching does not change the result. `out` may alias `before`.
#include "portable.cuh"

extern "C" __global__ void add_squares(const float* __restrict__ x, const double* before,
                                       double* out, int tokens, int hidden) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= hidden) return;
  double sum = before[i];
  for (int t = 0; t < tokens; ++t) {
    const double value = x[static_cast<size_t>(t) * hidden + i];
    sum += value * value;
  }
  out[i] = sum;
}
