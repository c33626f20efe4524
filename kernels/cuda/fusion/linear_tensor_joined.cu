// Two or three F16 or BF16 weights times the same few tokens on tensor cores in one launch.
#include "linear_tensor.cuh"

extern "C" __global__ void FEW_ON_TENSOR_CORES
    linear_tensor_pair_8(const float* x, const uint8_t* weight, const uint8_t* weight_1, float* out,
                  float* out_1, int tokens, int hidden, int rows, int rows_1) {
  DYNAMIC_SHARED(FewShared, shared);
  const Rows own = own_rows<FEW_ROWS / FEW_WARPS>({{weight, out, rows}, {weight_1, out_1, rows_1}});
  up_to_eight(x, own, tokens, hidden, *shared);
}

extern "C" __global__ void FEW_ON_TENSOR_CORES
    linear_tensor_trio_8(const float* x, const uint8_t* weight, const uint8_t* weight_1,
                  const uint8_t* weight_2, float* out, float* out_1, float* out_2, int tokens,
                  int hidden, int rows, int rows_1, int rows_2) {
  DYNAMIC_SHARED(FewShared, shared);
  const Rows own = own_rows<FEW_ROWS / FEW_WARPS>(
      {{weight, out, rows}, {weight_1, out_1, rows_1}, {weight_2, out_2, rows_2}});
  up_to_eight(x, own, tokens, hidden, *shared);
}
