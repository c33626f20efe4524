// open_gate: a thread for each element of a token's row.
#include "activations.cuh"
#include "portable.cuh"

extern "C" __global__ void open_gate(const float* __restrict__ x, const float* __restrict__ gate,
                                     float* __restrict__ out, int tokens, int width) {
  const int i = blockIdx.y * blockDim.x + threadIdx.x;
  if (i >= width) return;
  const size_t at = static_cast<size_t>(blockIdx.x) * width + i;
  out[at] = Sigmoid()(gate[blockIdx.x]) * x[at];
}
