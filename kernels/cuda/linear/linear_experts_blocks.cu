// linear_experts with block-format weights, by linear's kernel for few tokens (linear_blocks.cuh);
// all experts' matrices are packed as one.
#include "linear_experts.cuh"
#include "linear_blocks.cuh"

extern "C" __global__ void __launch_bounds__(FEW_WARPS * WARP, 2)
    linear_experts(const int8_t* q, const float* scale, const int32_t* total, const int32_t* ends,
                   const uint8_t* weight, const int32_t* slots, float* out, int tokens, int hidden,
                   int experts, int held, int rows) {
  __shared__ float partial[FEW_WARPS * PARTIAL<EXPERT_ROWS, MOST>];
  wait_for_previous();
  const int first = static_cast<int>(blockIdx.x) * BLOCK_ROWS<EXPERT_ROWS>;
  for_run(ends, [&](int token, int some) {
    const size_t own_x = static_cast<size_t>(token) * (hidden / BLOCK);
    const Rows own = {weight, out + static_cast<size_t>(token) * rows, rows, first,
                      slots[blockIdx.y], held};
    const int8_t* const codes = q + own_x * BLOCK;
    if (some == 1)
      few<1, EXPERT_ROWS>(codes, scale + own_x, total + own_x, own, some, hidden, of_one(partial));
    else
      few<MOST, EXPERT_ROWS>(codes, scale + own_x, total + own_x, own, some, hidden, partial);
  });
}
