// Transposes [tokens, heads] rows to [heads, tokens] and back: one thread per element of a head.
#include "portable.cuh"

extern "C" __global__ void split_heads(const float* __restrict__ x, int64_t, float* __restrict__ out,
                                       int tokens, int heads, int width, int size) {
  const int i = blockIdx.y * blockDim.x + threadIdx.x;
  if (i >= size) return;
  const int token = blockIdx.x / heads, head = blockIdx.x % heads;
  const size_t row = static_cast<size_t>(head) * tokens + token;
  out[row * size + i] = x[static_cast<size_t>(blockIdx.x) * width + i];
}

extern "C" __global__ void ends_of_heads(const float* __restrict__, int32_t* __restrict__ ends,
                                         int tokens, int heads, int width) {
  const int head = blockIdx.x * blockDim.x + threadIdx.x;
  if (head < heads) ends[head] = (head + 1) * tokens;
}

extern "C" __global__ void merge_heads(const float* __restrict__ y, const float* __restrict__ x,
                                        int64_t, float* __restrict__ out, int size, int tokens,
                                        int heads, int width, int whole) {
  const int i = blockIdx.y * blockDim.x + threadIdx.x;
  if (i >= whole) return;
  const int token = blockIdx.x / heads, head = blockIdx.x % heads;
  const size_t row = static_cast<size_t>(head) * tokens + token;
  const size_t end = static_cast<size_t>(blockIdx.x + 1) * width;
  out[static_cast<size_t>(blockIdx.x) * whole + i] =
      i < size ? y[row * size + i] : x[end - whole + i];
}
