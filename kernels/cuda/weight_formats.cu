// Dequantizes weights to float32: one thread per element, row in blockIdx.x.
#include "grid_formats.cuh"

extern "C" __global__ void dequantise(const uint8_t* __restrict__ data, float* __restrict__ out,
                                      int rows, int hidden) {
  const int i = blockIdx.y * blockDim.x + threadIdx.x;
  if (i >= hidden) return;
  const size_t first = static_cast<size_t>(hidden / FORMAT::BLOCK) * blockIdx.x;
  const uint8_t* const block = data + (first + i / FORMAT::BLOCK) * FORMAT::BYTES;
  out[static_cast<size_t>(blockIdx.x) * hidden + i] = FORMAT::element(block, i % FORMAT::BLOCK);
}
