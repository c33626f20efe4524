// Two or three block-format weights times the same few tokens in one launch. Three need more
// registers for addresses, so one resident thread block fewer is asked for.
#include "linear_blocks_few.cuh"

#define PAIR(most)                                                                         \
  extern "C" __global__ void FEW_BOUNDS(most, F::at_once) linear_pair_##most(              \
      const int8_t* q, const float* scale, const int32_t* total, const uint8_t* weight,    \
      const uint8_t* weight_1, float* out, float* out_1, int tokens, int hidden, int rows, \
      int rows_1)
#define TRIO(most)                                                                              \
  extern "C" __global__ void FEW_BOUNDS(most, F::at_once - 1) linear_trio_##most(               \
      const int8_t* q, const float* scale, const int32_t* total, const uint8_t* weight,         \
      const uint8_t* weight_1, const uint8_t* weight_2, float* out, float* out_1, float* out_2, \
      int tokens, int hidden, int rows, int rows_1, int rows_2)
#define OF_PAIR {{weight, out, rows}, {weight_1, out_1, rows_1}}
#define OF_TRIO {{weight, out, rows}, {weight_1, out_1, rows_1}, {weight_2, out_2, rows_2}}

#define ONE(...)                                                                     \
  {                                                                                  \
    __shared__ float partial[FEW_WARPS * PARTIAL<ROWS_OF_1, 1>];                     \
    const Rows own = own_rows<ROWS_OF_1>(__VA_ARGS__);                               \
    few<1, ROWS_OF_1>(q, scale, total, own, tokens, hidden, partial);                \
  }
#define EIGHT(...)                                                                              \
  {                                                                                             \
    __shared__ FewShared shared;                                                                \
    const Rows own = own_rows<ROWS_OF_8>(__VA_ARGS__);                                          \
    up_to_eight(q, scale, total, own, tokens, hidden, shared);                                  \
  }
PAIR(1) ONE(OF_PAIR)
PAIR(8) EIGHT(OF_PAIR)
TRIO(1) ONE(OF_TRIO)
TRIO(8) EIGHT(OF_TRIO)
