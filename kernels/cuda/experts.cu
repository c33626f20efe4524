// Mixture of experts: router and weighted sum. choose_experts: one thread block per token;
// sort_pairs: one per expert; needed_experts: one in all; other kernels: one thread per element.
#include "activations.cuh"
#include "portable.cuh"

// Whether expert e ranks above another: ties go to the lower index.
static __device__ __forceinline__ bool outranks(const float* ranks, int e, int other) {
  return ranks[e] > ranks[other] || (ranks[e] == ranks[other] && e < other);
}

// Score of an expert group: the sum of its two best experts.
static __device__ __forceinline__ float of_group(const float* ranks, int size) {
  float first = -INFINITY, second = -INFINITY;
  for (int e = 0; e < size; ++e) {
    second = fmaxf(second, fminf(first, ranks[e]));
    first = fmaxf(first, ranks[e]);
  }
  return size > 1 ? first + second : first;
}

// Rank of entry `own` among `count` entries.
static __device__ __forceinline__ int rank_of(const float* ranks, int count, int own) {
  int ahead = 0;
  for (int e = 0; e < count; ++e) ahead += outranks(ranks, e, own);
  return ahead;
}

extern "C" __global__ void choose_experts(const float* __restrict__ scores,
                                          const float* __restrict__ bias, int64_t used,
                                          int64_t groups, int64_t kept, int32_t* __restrict__ chosen,
                                          int tokens, int experts, int) {
  DYNAMIC_SHARED(float, ranks);
  float* const sums = ranks + experts;  // of groups, then flags of chosen experts
  const size_t row = static_cast<size_t>(blockIdx.x) * experts;
  const int size = experts / groups;
  for (int e = threadIdx.x; e < experts; e += blockDim.x) ranks[e] = scores[row + e] + bias[e];
  __syncthreads();
  if (kept < groups) {
    for (int g = threadIdx.x; g < groups; g += blockDim.x) sums[g] = of_group(ranks + g * size, size);
    __syncthreads();
    for (int e = threadIdx.x; e < experts; e += blockDim.x)
      if (rank_of(sums, groups, e / size) >= kept) ranks[e] = -INFINITY;
    __syncthreads();
  }
  for (int e = threadIdx.x; e < experts; e += blockDim.x)
    sums[e] = rank_of(ranks, experts, e) < used;
  __syncthreads();
  for (int e = threadIdx.x; e < experts; e += blockDim.x) {
    if (sums[e] == 0.f) continue;
    int place = 0;
    for (int other = 0; other < e; ++other) place += sums[other] != 0.f;
    chosen[blockIdx.x * used + place] = e;
  }
}

extern "C" __global__ void gather_scores(const float* __restrict__ scores,
                                            const int32_t* __restrict__ chosen,
                                            float* __restrict__ out, int tokens, int experts,
                                            int used) {
  const int k = blockIdx.y * blockDim.x + threadIdx.x;
  if (k >= used) return;
  const size_t at = static_cast<size_t>(blockIdx.x) * used + k;
  out[at] = scores[static_cast<size_t>(blockIdx.x) * experts + chosen[at]];
}

extern "C" __global__ void normalise_weights(const float* __restrict__ weights, float* __restrict__ out,
                                         int tokens, int used) {
  constexpr float LEAST = 1.f / 16384;
  const int token = blockIdx.x * blockDim.x + threadIdx.x;
  if (token >= tokens) return;
  const size_t row = static_cast<size_t>(token) * used;
  float total = 0.f;
  for (int k = 0; k < used; ++k) total += weights[row + k];
  if (total < LEAST) total = LEAST;
  for (int k = 0; k < used; ++k) out[row + k] = weights[row + k] / total;
}

// Counting sort of (token, expert) pairs: one thread block per expert, positions by prefix sums.
extern "C" __global__ void sort_pairs(const int32_t* __restrict__ chosen, int32_t* __restrict__ rows,
                                      int32_t* __restrict__ expert, int32_t* __restrict__ places,
                                      int32_t* __restrict__ ends, int tokens, int used, int experts) {
  __shared__ int partial[WARP], counts[WARP];
  const int pairs = tokens * used, own = blockIdx.x;
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
  int less = 0;
  for (int p = threadIdx.x; p < pairs; p += blockDim.x) less += chosen[p] < own;
  int place = block_reduce(less, partial, Sum());
  for (int begin = 0; begin < pairs; begin += blockDim.x) {
    const int p = begin + threadIdx.x;
    const bool is = p < pairs && chosen[p] == own;
    int running = is;
    for (int m = 1; m < WARP; m *= 2) {
      const int other = __shfl_up_sync(ALL, running, m);
      if (lane >= m) running += other;
    }
    if (lane == WARP - 1) counts[warp] = running;
    __syncthreads();
    int at = place + running - 1;
    for (int w = 0; w < warps; ++w) {
      if (w < warp) at += counts[w];
      place += counts[w];
    }
    if (is) rows[at] = p / used, expert[at] = own, places[p] = at;
    __syncthreads();
  }
  if (threadIdx.x == 0) ends[own] = place;
}

// One thread block compacts the list of experts that have pairs; unused entries are 0.
extern "C" __global__ void needed_experts(const int32_t* __restrict__ ends,
                                          int32_t* __restrict__ needed, int32_t* __restrict__ count,
                                          int experts) {
  const auto has = [&](int e) { return ends[e] > (e ? ends[e - 1] : 0); };
  int all = 0;
  for (int e = 0; e < experts; ++e) all += has(e);
  for (int e = threadIdx.x; e < experts; e += blockDim.x) {
    int place = 0;
    for (int other = 0; other < e; ++other) place += has(other);
    if (has(e)) needed[place] = e;
    if (e >= all) needed[e] = 0;
  }
  if (threadIdx.x == 0) *count = all;
}

extern "C" __global__ void sum_experts(const float* __restrict__ y,
                                       const int32_t* __restrict__ places,
                                       const float* __restrict__ weights, float* __restrict__ out,
                                       int hidden, int tokens, int used) {
  const int i = blockIdx.y * blockDim.x + threadIdx.x;
  if (i >= hidden) return;
  const size_t row = static_cast<size_t>(blockIdx.x) * used;
  float sum = 0.f;
  for (int k = 0; k < used; ++k)
    sum = fmaf(weights[row + k], y[static_cast<size_t>(places[row + k]) * hidden + i], sum);
  out[static_cast<size_t>(blockIdx.x) * hidden + i] = sum;
}

extern "C" __global__ void sigmoid_gate(const float* __restrict__ x, const float* __restrict__ gate,
                                     float* __restrict__ out, int tokens, int width) {
  const int i = blockIdx.y * blockDim.x + threadIdx.x;
  if (i >= width) return;
  const size_t at = static_cast<size_t>(blockIdx.x) * width + i;
  out[at] = Sigmoid()(gate[blockIdx.x]) * x[at];
}
