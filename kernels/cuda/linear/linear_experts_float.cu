// linear_experts with F32, F16 and BF16 weights, by linear's kernel for few tokens.
#include "linear_experts.cuh"
#include "linear_float.cuh"

extern "C" __global__ void __launch_bounds__(FEW_WARPS * WARP, 2)
    linear_experts(const float* x, const int32_t* ends, const uint8_t* weight, const int32_t* slots,
                   float* out, int tokens, int hidden, int experts, int held, int rows) {
  __shared__ float partial[FEW_WARPS * PARTIAL<EXPERT_ROWS, MOST>];
  wait_for_previous();
  const int first = static_cast<int>(blockIdx.x) * BLOCK_ROWS<EXPERT_ROWS>;
  for_run(ends, [&](int token, int some) {
    const size_t bytes = static_cast<size_t>(rows) * hidden * sizeof(T);
    const Rows own = {weight + slots[blockIdx.y] * bytes, out + static_cast<size_t>(token) * rows,
                      rows, first};
    const float* const own_x = x + static_cast<size_t>(token) * hidden;
    if (some == 1)
      few_of<false, 1, EXPERT_ROWS>(own_x, own, some, hidden, of_one(partial));
    else
      few_of<false, MOST, EXPERT_ROWS>(own_x, own, some, hidden, partial);
  });
}
