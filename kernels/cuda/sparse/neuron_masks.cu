// Masks of active neurons, uint8 [tokens, neurons], and their compaction to a list of rows. A
// thread computes an element or, where tokens are combined, a neuron.
#include "portable.cuh"

static __device__ __forceinline__ size_t own() {
  return static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}

extern "C" __global__ void threshold_mask(const float* __restrict__ logits, double threshold,
                                          uint8_t* __restrict__ mask, int tokens, int neurons) {
  const size_t i = own();
  if (i < static_cast<size_t>(tokens) * neurons) mask[i] = logits[i] >= threshold;
}

extern "C" __global__ void union_mask(const uint8_t* __restrict__ mask, uint8_t* __restrict__ out,
                                      int tokens, int neurons) {
  const size_t neuron = own(), n = neurons;
  if (neuron >= n) return;
  uint8_t found = 0;
  for (int t = 0; t < tokens; ++t) found |= mask[t * n + neuron];
  for (int t = 0; t < tokens; ++t) out[t * n + neuron] = found;
}

extern "C" __global__ void neuron_split(const uint8_t* __restrict__ mask,
                                        const int* __restrict__ places, double place,
                                        uint8_t* __restrict__ out, int tokens, int neurons) {
  const size_t i = own();
  if (i < static_cast<size_t>(tokens) * neurons)
    out[i] = places[i % neurons] == place ? mask[i] : 0;
}

extern "C" __global__ void add_counts(const uint8_t* __restrict__ mask,
                                      const int64_t* __restrict__ before,
                                      int64_t* __restrict__ out, int tokens, int neurons) {
  const size_t neuron = own(), n = neurons;
  if (neuron >= n) return;
  int found = 0;
  for (int t = 0; t < tokens; ++t) found += mask[t * n + neuron];
  out[neuron] = before[neuron] + found;
}

extern "C" __global__ void where_active(const float* __restrict__ x,
                                        const uint8_t* __restrict__ mask, float* __restrict__ out,
                                        int tokens, int neurons) {
  const size_t i = own();
  if (i < static_cast<size_t>(tokens) * neurons) out[i] = mask[i] ? x[i] : 0.f;
}

constexpr int EACH = 16;  // neurons per thread: a 16-byte load

// Bit k is set if neuron first + k is active for any token.
static __device__ __forceinline__ uint32_t active_of(const uint8_t* __restrict__ mask, int first, int tokens,
                                     int neurons) {
  uint32_t found = 0;
  if (neurons % EACH) {  // rows are unaligned
    for (int k = 0; k < EACH && first + k < neurons; ++k)
      for (int t = 0; t < tokens && !(found >> k & 1); ++t)
        found |= static_cast<uint32_t>(mask[static_cast<size_t>(t) * neurons + first + k]) << k;
    return found;
  }
  uint4 any = {0, 0, 0, 0};
  for (int t = 0; t < tokens; ++t) {
    const size_t at = static_cast<size_t>(t) * neurons + first;
    const uint4 some = *reinterpret_cast<const uint4*>(mask + at);
    any.x |= some.x, any.y |= some.y, any.z |= some.z, any.w |= some.w;
  }
  const uint32_t words[] = {any.x, any.y, any.z, any.w};
#pragma unroll
  for (int k = 0; k < EACH; ++k) found |= (words[k / 4] >> 8 * (k % 4) & 1) << k;
  return found;
}

// Stream compaction in one thread block: prefix sums of counts by warp shuffles, then over warps.
extern "C" __global__ void __launch_bounds__(1024)
    active_rows(const uint8_t* __restrict__ mask, int* __restrict__ rows, int* __restrict__ count,
                int tokens, int neurons) {
  __shared__ int counts[WARP];  // per warp
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
  int before = 0;  // rows found already
  for (int begin = 0; begin < neurons; begin += blockDim.x * EACH) {
    const int first = begin + threadIdx.x * EACH;
    uint32_t found = first < neurons ? active_of(mask, first, tokens, neurons) : 0;
    int running = __popc(found);
    for (int m = 1; m < WARP; m *= 2) {
      const int other = __shfl_up_sync(ALL, running, m);
      if (lane >= m) running += other;
    }
    if (lane == WARP - 1) counts[warp] = running;
    __syncthreads();
    int place = before + running - __popc(found);
    for (int w = 0; w < warps; ++w) {
      if (w < warp) place += counts[w];
      before += counts[w];
    }
    for (; found; found &= found - 1) rows[place++] = first + __ffs(found) - 1;
    __syncthreads();
  }
  for (int i = before + threadIdx.x; i < neurons; i += blockDim.x) rows[i] = 0;
  if (threadIdx.x == 0) *count = before;
}
