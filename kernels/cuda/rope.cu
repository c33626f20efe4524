// rotation: cosine and sine, one thread per token and pair. rope_norm, rope_neox: one thread per
// two elements of a head, either a rotated pair or two elements that are copied.
#include "rope.cuh"

extern "C" __global__ void rotation(const int32_t* __restrict__ positions,
                                    const double* __restrict__ frequencies, double magnitude,
                                    double temperature, int64_t length, float* __restrict__ out,
                                    int tokens, int pairs) {
  const int i = blockIdx.y * blockDim.x + threadIdx.x;
  if (i >= pairs) return;
  double sine, cosine;
  sincos(positions[blockIdx.x] * frequencies[i], &sine, &cosine);
  const double lengths = static_cast<double>(positions[blockIdx.x] / length);
  const double tuned = magnitude * (1 + temperature * log1p(lengths));
  const size_t pair = static_cast<size_t>(blockIdx.x) * pairs + i;
  out[2 * pair] = static_cast<float>(tuned * cosine);
  out[2 * pair + 1] = static_cast<float>(tuned * sine);
}

// Pair i: elements step * i and step * i + beside.
static __device__ __forceinline__ void turn(const float* x, const float* rotation, float* out,
                                            int heads, int head_dim, int pairs, int step,
                                            int beside) {
  const int halves = (head_dim + 1) / 2, k = blockIdx.y * blockDim.x + threadIdx.x;
  if (k >= heads * halves) return;
  const int i = k % halves;
  const size_t head = (static_cast<size_t>(blockIdx.x) * heads + k / halves) * head_dim;
  if (i >= pairs) {
    out[head + 2 * i] = x[head + 2 * i];
    if (2 * i + 1 < head_dim) out[head + 2 * i + 1] = x[head + 2 * i + 1];
    return;
  }
  const size_t pair = static_cast<size_t>(blockIdx.x) * pairs + i;
  const float cosine = rotation[2 * pair], sine = rotation[2 * pair + 1];
  const size_t first = head + step * i, second = first + beside;
  const float a = x[first], b = x[second];
  out[first] = rotated_first(a, b, cosine, sine);
  out[second] = rotated_second(a, b, cosine, sine);
}

extern "C" __global__ void rope_norm(const float* __restrict__ x,
                                     const float* __restrict__ rotation, float* __restrict__ out,
                                     int tokens, int heads, int head_dim, int pairs) {
  turn(x, rotation, out, heads, head_dim, pairs, 2, 1);
}

extern "C" __global__ void rope_neox(const float* __restrict__ x,
                                     const float* __restrict__ rotation, float* __restrict__ out,
                                     int tokens, int heads, int head_dim, int pairs) {
  turn(x, rotation, out, heads, head_dim, pairs, 1, pairs);
}
