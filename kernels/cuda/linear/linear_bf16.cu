// linear with BF16 weights and activations rounded to bfloat16: in registers for few tokens; many
// are rounded by round_tokens, for cuBLAS.
#include "linear_float.cuh"

FEW(linear_1, true, 1, ROWS_OF_1)
FEW(linear_2, true, 2, ROWS_OF_2)
FEW(linear_4, true, 4, ROWS_OF_4)
FEW(linear_8, true, 8, ROWS_OF_8)

extern "C" __global__ void __launch_bounds__(256)
    round_tokens(const float* __restrict__ x, uint16_t* __restrict__ scratch, int tokens,
                 int hidden) {
  wait_for_previous();
  const size_t size = static_cast<size_t>(tokens) * hidden;
  const size_t first = EIGHT * (static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x);
  if (first + EIGHT <= size) {
    const Run<bfloat_t> run = rounded(load_run<true>(x + first, 0, EIGHT));
    *reinterpret_cast<uint4*>(scratch + first) =
        uint4{run.words[0], run.words[1], run.words[2], run.words[3]};
    return;
  }
  for (size_t i = first; i < size; ++i) scratch[i] = to_bfloat(x[i]).bits;
}
