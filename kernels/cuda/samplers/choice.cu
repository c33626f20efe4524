// greedy and log_sum_exp: as many blocks as a warp has lanes look at parts of the vocabulary, then
// a warp at what they found.
#include "ordered.cuh"

struct Larger {
  __device__ uint64_t operator()(uint64_t a, uint64_t b) const { return a < b ? b : a; }
};

extern "C" __global__ void greedy_parts(const float* __restrict__ logits,
                                        uint64_t* __restrict__ scratch, int vocab) {
  __shared__ uint64_t partial[WARP];
  uint64_t best = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < vocab; i += gridDim.x * blockDim.x)
    best = Larger()(best, key_of(logits[i], i));
  best = block_reduce(best, partial, Larger());
  if (threadIdx.x == 0) scratch[blockIdx.x] = best;
}

extern "C" __global__ void greedy(const uint64_t* __restrict__ scratch,
                                  int32_t* __restrict__ token) {
  uint64_t best = scratch[threadIdx.x];
  for (int m = WARP / 2; m; m /= 2) best = Larger()(best, __shfl_xor_sync(ALL, best, m));
  if (threadIdx.x == 0) token[0] = id_of(best);
}

// Of each part: the largest logit, and the sum of exp(logit - largest), in double precision.
extern "C" __global__ void log_sum_exp_parts(const float* __restrict__ logits,
                                             double* __restrict__ scratch, int vocab) {
  __shared__ float tops[WARP];
  __shared__ double sums[WARP];
  const int first = blockIdx.x * blockDim.x + threadIdx.x, step = gridDim.x * blockDim.x;
  float top = -INFINITY;
  for (int i = first; i < vocab; i += step) top = fmaxf(top, logits[i]);
  top = block_reduce(top, tops, Max());
  double sum = 0.;
  for (int i = first; i < vocab; i += step)
    if (logits[i] != -INFINITY) sum += expf(logits[i] - top);  // NaN, too
  sum = block_reduce(sum, sums, Sum());
  if (threadIdx.x == 0) {
    scratch[2 * blockIdx.x] = top;
    scratch[2 * blockIdx.x + 1] = sum;
  }
}

extern "C" __global__ void log_sum_exp(const double* __restrict__ scratch,
                                       double* __restrict__ out) {
  const double own = scratch[2 * threadIdx.x];
  double top = own;
  for (int m = WARP / 2; m; m /= 2) top = fmax(top, __shfl_xor_sync(ALL, top, m));
  double sum = scratch[2 * threadIdx.x + 1] * exp(own - top);
  for (int m = WARP / 2; m; m /= 2) sum += __shfl_xor_sync(ALL, sum, m);
  if (threadIdx.x == 0) out[0] = top + log(sum);
}
