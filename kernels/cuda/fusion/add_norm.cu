// Residual add, rms_norm and int8 quantisation of its result, fused, all or two of the three: a
// thread block per token, four elements per thread and iteration.
#include "quantise_activations.cuh"
#include "rms_norm.cuh"

// The norm's factor of x + y, which goes to `sum`; each thread rereads only what it stored.
static __device__ __forceinline__ float factor_of_sum(const float* x, const float* y, float* sum,
                                                      const float* weight, int hidden, double eps,
                                                      float* partial, FirstFour& kept) {
  return factor_of(weight, hidden, eps, partial, kept, [&](int i) {
    Four four = load_of_row(x, i, hidden);
    const Four other = load_of_row(y, i, hidden);
    for (int k = 0; k < 4; ++k) four.at[k] += other.at[k];
    store_of_row(sum, i, hidden, four);
    return four;
  });
}

// Normalises and quantises a row. All threads of the block take part in the reductions.
template <int TOGETHER>
static __device__ __forceinline__ void normalise_and_round(const float* x, const float* weight,
                                                           float* normed, int8_t* q, float* scale,
                                                           int32_t* total, size_t row, int hidden,
                                                           float factor, const FirstFour& kept,
                                                           int* largest) {
  for (int begin = 0; 4 * begin < hidden; begin += blockDim.x) {
    const int i = 4 * (begin + threadIdx.x);
    const bool inside = i < hidden;
    Four four{};
    if (inside) {
      four = normalised(x + row, weight, i, hidden, factor, kept);
      store_of_row(normed + row, i, hidden, four);
    }
    round_four<TOGETHER>(four, row + i, inside, largest, q, scale, total);
  }
}

extern "C" __global__ void __launch_bounds__(ROW_THREADS)
    add_norm(const float* __restrict__ x, const float* __restrict__ y,
             const float* __restrict__ weight, double eps, float* sum, float* __restrict__ normed,
             int tokens, int hidden) {
  __shared__ float partial[WARP];
  wait_for_previous();
  const size_t row = static_cast<size_t>(blockIdx.x) * hidden;
  FirstFour kept;
  const float factor =
      factor_of_sum(x + row, y + row, sum + row, weight, hidden, eps, partial, kept);
  for (int i = 4 * threadIdx.x; i < hidden; i += 4 * blockDim.x)
    store_of_row(normed + row, i, hidden, normalised(sum + row, weight, i, hidden, factor, kept));
}

#define NORM_ROUND(TOGETHER, ending)                                                               \
  extern "C" __global__ void __launch_bounds__(ROW_THREADS) add_norm_round##ending(                \
      const float* __restrict__ x, const float* __restrict__ y, const float* __restrict__ weight,  \
      double eps, float* sum, float* __restrict__ normed, int8_t* __restrict__ q,                  \
      float* __restrict__ scale, int32_t* __restrict__ total, int tokens, int hidden) {            \
    __shared__ float partial[WARP];                                                                \
    __shared__ int largest[WARP];                                                                  \
    wait_for_previous();                                                                           \
    const size_t row = static_cast<size_t>(blockIdx.x) * hidden;                                   \
    FirstFour kept;                                                                                \
    const float factor =                                                                           \
        factor_of_sum(x + row, y + row, sum + row, weight, hidden, eps, partial, kept);            \
    normalise_and_round<TOGETHER>(sum, weight, normed, q, scale, total, row, hidden, factor, kept, \
                                  largest);                                                        \
  }                                                                                                \
  extern "C" __global__ void __launch_bounds__(ROW_THREADS) norm_round##ending(                    \
      const float* __restrict__ x, const float* __restrict__ weight, double eps,                   \
      float* __restrict__ normed, int8_t* __restrict__ q, float* __restrict__ scale,               \
      int32_t* __restrict__ total, int tokens, int hidden) {                                       \
    __shared__ float partial[WARP];                                                                \
    __shared__ int largest[WARP];                                                                  \
    wait_for_previous();                                                                           \
    const size_t row = static_cast<size_t>(blockIdx.x) * hidden;                                   \
    FirstFour kept;                                                                                \
    const float factor = factor_of(weight, hidden, eps, partial, kept,                             \
                                   [&](int i) { return load_of_row(x + row, i, hidden); });        \
    normalise_and_round<TOGETHER>(x, weight, normed, q, scale, total, row, hidden, factor, kept,   \
                                  largest);                                                        \
  }
NORM_ROUND(32, )
NORM_ROUND(256, _256)
