// Gate and up projections of one token with block-format weights; gated activation and int8
// quantisation as epilogue. A thread block has 32 rows, which share a scale and which its warps take
// in turn.
#include "linear_blocks.cuh"
#include "linear_gated.cuh"
#include "quantise_activations.cuh"

#if !defined(HOST) && __CUDA_ARCH__ < 800  // with fewer registers Q8_0 would spill
constexpr int BLOCKS_AT_ONCE = 1;
#else
constexpr int BLOCKS_AT_ONCE = GATED_AT_ONCE;
#endif
static_assert(BLOCK % GATED_WARPS == 0, "whole turns of all warps");

template <class Of>
static __device__ __forceinline__ void gate_and_round(
    const int8_t* __restrict__ q, const float* __restrict__ scale,
    const int32_t* __restrict__ total, const Rows& gate, const Rows& up,
    float* __restrict__ gated, int8_t* __restrict__ codes, float* __restrict__ steps,
    int32_t* __restrict__ totals, int hidden, float (*partial)[PARTIAL<2, 1>], float* found, Of of) {
  const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, blocks = hidden / BLOCK;
  const size_t size = static_cast<size_t>(gate.count) * blocks;
  const Weight<F> of_gate(gate.weight, size), of_up(up.weight, size);
#pragma unroll 1
  for (int turn = 0; turn < BLOCK; turn += GATED_WARPS) {
    const int row = static_cast<int>(blockIdx.x) * BLOCK + turn + warp;
    const size_t begin = static_cast<size_t>(row) * blocks;
    float sums[2][1] = {};
    add_rows<false>(sums, q, scale, total, 1, blocks, [&](int r, int block) {
      return (r ? of_up : of_gate).load(begin + block);
    });
    const float sum = sum_of_chains(sums, partial[warp]);  // lane 0 has gate's, lane 1 up's
    const float other = __shfl_down_sync(ALL, sum, 1);
    if (lane < 2) (lane ? up : gate).out[row] = sum;
    if (lane == 0) gated[row] = found[turn + warp] = of(sum, other);
    __syncwarp();  // `partial` is reused for the next row
  }
  __syncthreads();
  if (warp == 0)
    round_one(found[lane], static_cast<size_t>(blockIdx.x) * BLOCK + lane, codes, steps, totals);
}

// The next kernel may start before the wait: behind it, this one would spill registers.
#define JOINED(name, Of)                                                                          \
  extern "C" __global__ void __launch_bounds__(GATED_WARPS * WARP, BLOCKS_AT_ONCE)                \
      linear_##name##_round(                                                                      \
      const int8_t* q, const float* scale, const int32_t* total, const uint8_t* weight,           \
      const uint8_t* weight_1, float* out, float* out_1, float* gated, int8_t* codes,             \
      float* steps, int32_t* totals, int tokens, int hidden, int rows, int rows_1) {              \
    __shared__ float partial[GATED_WARPS][PARTIAL<2, 1>], found[BLOCK];                           \
    launch_dependents();                                                                          \
    gate_and_round(q, scale, total, {weight, out, rows, 0}, {weight_1, out_1, rows_1, 0}, gated,  \
                   codes, steps, totals, hidden, partial, found, Of());                           \
  }
EACH_JOINED(JOINED)
