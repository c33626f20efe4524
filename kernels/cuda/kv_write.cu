// Writes tokens' keys or values to their KV cache cells: one thread per element of a row.
#include "kv_write.cuh"

extern "C" __global__ void kv_write(const float* __restrict__ x, const int32_t* __restrict__ cells,
                                    uint8_t* __restrict__ out, int tokens, int width,
                                    int capacity) {
  const int i = blockIdx.y * blockDim.x + threadIdx.x;
  if (i >= width) return;
  const float own = x[static_cast<size_t>(blockIdx.x) * width + i];
  write_to_cell(own, out, cells[blockIdx.x], width, i);
}
