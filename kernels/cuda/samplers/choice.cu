// argmax and its log-probability: 32 thread blocks reduce parts of a row of logits, then one warp
// per row merges their results.
#include "ordered.cuh"

struct Larger {
  __device__ uint64_t operator()(uint64_t a, uint64_t b) const { return a < b ? b : a; }
};

// Result of a part: its best token, and the sum of exp(logit - that token's).
struct Found {
  uint64_t best;  // 0: empty part
  double sum;
};

static __device__ __forceinline__ float top_of(uint64_t best) {
  return best ? logit_of(best) : -INFINITY;
}

extern "C" __global__ void argmax_parts(const float* __restrict__ logits,
                                           uint64_t* __restrict__ scratch, int rows, int vocab) {
  __shared__ uint64_t bests[WARP];
  __shared__ double sums[WARP];
  wait_for_previous();
  const int first = blockIdx.x * blockDim.x + threadIdx.x, step = gridDim.x * blockDim.x;
  const float* const row = logits + static_cast<size_t>(blockIdx.y) * vocab;
  uint64_t best = 0;
  for (int i = first; i < vocab; i += step) best = Larger()(best, key_of(row[i], i));
  best = block_reduce(best, bests, Larger());
  const float top = top_of(best);
  double sum = 0.;
  for (int i = first; i < vocab; i += step)
    if (row[i] != -INFINITY) sum += expf(row[i] - top);  // keeps NaN
  sum = block_reduce(sum, sums, Sum());
  Found* const found = reinterpret_cast<Found*>(scratch) + blockIdx.y * gridDim.x + blockIdx.x;
  if (threadIdx.x == 0) *found = {best, sum};
}

extern "C" __global__ void argmax(const uint64_t* __restrict__ scratch,
                                     int32_t* __restrict__ token, double* __restrict__ logprob,
                                     int rows) {
  wait_for_previous();
  const int row = blockIdx.x;
  const Found own = reinterpret_cast<const Found*>(scratch)[row * WARP + threadIdx.x];
  uint64_t best = own.best;
  for (int m = WARP / 2; m; m /= 2) best = Larger()(best, __shfl_xor_sync(ALL, best, m));
  double sum = own.sum * exp(static_cast<double>(top_of(own.best)) - top_of(best));
  for (int m = WARP / 2; m; m /= 2) sum += __shfl_xor_sync(ALL, sum, m);
  if (threadIdx.x == 0) {
    token[row] = id_of(best);
    logprob[row] = -log(sum);
  }
}
