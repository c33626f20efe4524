// Adds sparse_axpy's splits in order: a thread per output.
#include "sparse_axpy.cuh"

extern "C" __global__ void sparse_axpy_merge(const float* __restrict__ scratch,
                                             const int* __restrict__ rows, float* __restrict__ out,
                                             int tokens, int hidden, int neurons) {
  const size_t size = static_cast<size_t>(tokens) * hidden;
  const size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= size) return;
  float total = 0.f;
  const int splits = splits_of(neurons);
  for (int s = 0; s < splits; ++s) total += scratch[s * size + i];
  out[i] = total;
}
