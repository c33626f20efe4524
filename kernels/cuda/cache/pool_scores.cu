// Average pooling of scores over `size` neighbours, but for the last ones: one thread per score.
#include "portable.cuh"

extern "C" __global__ void pool_scores(const float* __restrict__ scores, int64_t size, int64_t last,
                                       float* __restrict__ out, int kv_heads, int held) {
  const int j = blockIdx.y * blockDim.x + threadIdx.x;
  if (j >= held) return;
  const float* const own = scores + static_cast<size_t>(blockIdx.x) * held;
  const int pooled = held - static_cast<int>(last), half = static_cast<int>(size / 2);
  float found = own[j];
  if (j < pooled) {
    found = 0.f;
    for (int i = max(0, j - half); i < min(pooled, j + half + 1); ++i) found += own[i];
    found /= static_cast<float>(size);
  }
  out[static_cast<size_t>(blockIdx.x) * held + j] = found;
}
