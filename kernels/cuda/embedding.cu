// Dequantizes tokens' rows of the embedding table: one thread per element, token in blockIdx.x.
#include "grid_formats.cuh"

extern "C" __global__ void embedding(const int32_t* __restrict__ ids,
                                     const uint8_t* __restrict__ weight, float* __restrict__ out,
                                     int tokens, int vocab, int hidden) {
  const int i = blockIdx.y * blockDim.x + threadIdx.x;
  if (i >= hidden) return;
  const size_t first = static_cast<size_t>(hidden / FORMAT::BLOCK) * ids[blockIdx.x];
  const uint8_t* const block = weight + (first + i / FORMAT::BLOCK) * FORMAT::BYTES;
  out[static_cast<size_t>(blockIdx.x) * hidden + i] = FORMAT::element(block, i % FORMAT::BLOCK);
}
