// Two or three weights in a block format that meet the same few tokens. Three hold so many addresses
// that there is room for a block of threads less.
#include "linear_blocks.cuh"

#define FEW_JOINED(most, TOKENS, ROWS)                                                          \
  extern "C" __global__ void FEW_BOUNDS(TOKENS, F::at_once) linear_pair_##most(                 \
      const int8_t* q, const float* scale, const int32_t* total, const uint8_t* weight,         \
      const uint8_t* weight_1, float* out, float* out_1, int tokens, int hidden, int rows,      \
      int rows_1) {                                                                             \
    __shared__ float partial[FEW_WARPS * PARTIAL<ROWS, TOKENS>];                                \
    const Rows own = own_rows<ROWS>({{weight, out, rows}, {weight_1, out_1, rows_1}});          \
    few<TOKENS, ROWS>(q, scale, total, own, tokens, hidden, partial);                           \
  }                                                                                             \
  extern "C" __global__ void FEW_BOUNDS(TOKENS, F::at_once - 1) linear_trio_##most(             \
      const int8_t* q, const float* scale, const int32_t* total, const uint8_t* weight,         \
      const uint8_t* weight_1, const uint8_t* weight_2, float* out, float* out_1, float* out_2, \
      int tokens, int hidden, int rows, int rows_1, int rows_2) {                               \
    __shared__ float partial[FEW_WARPS * PARTIAL<ROWS, TOKENS>];                                \
    const Rows own = own_rows<ROWS>(                                                            \
        {{weight, out, rows}, {weight_1, out_1, rows_1}, {weight_2, out_2, rows_2}});           \
    few<TOKENS, ROWS>(q, scale, total, own, tokens, hidden, partial);                           \
  }
FEW_JOINED(1, 1, 2)
FEW_JOINED(2, 2, 2)
FEW_JOINED(4, 4, 4)
FEW_JOINED(8, 8, 4)
