// linear with block-format weights and activations quantised to int8 in blocks of 32.
#include "linear_blocks_few.cuh"
#include "linear_blocks_tile.cuh"

extern "C" __global__ void FEW_BOUNDS(1, F::at_once)
    linear_1(const int8_t* q, const float* scale, const int32_t* total, const uint8_t* weight,
             float* out, int tokens, int hidden, int rows) {
  __shared__ float partial[FEW_WARPS * PARTIAL<ROWS_OF_1, 1>];
  const int first = static_cast<int>(blockIdx.x) * BLOCK_ROWS<ROWS_OF_1>;
  few<1, ROWS_OF_1>(q, scale, total, {weight, out, rows, first}, tokens, hidden, partial);
}

extern "C" __global__ void FEW_BOUNDS(8)
    linear_8(const int8_t* q, const float* scale, const int32_t* total, const uint8_t* weight,
             float* out, int tokens, int hidden, int rows) {
  __shared__ FewShared shared;
  const int first = static_cast<int>(blockIdx.x) * FEW_ROWS;
  up_to_eight(q, scale, total, {weight, out, rows, first}, tokens, hidden, shared);
}

// Many tokens: tiles of 64 x 64 rows and tokens or, if there are enough of them, 128 x 128.
#define TILES(name, ROW_WARPS, N, AT_ONCE)                                                    \
  extern "C" __global__ void __launch_bounds__(Tile<ROW_WARPS, N>::THREADS, AT_ONCE)          \
      name(const int8_t* q, const float* scale, const int32_t* total, const uint8_t* weight,  \
           float* out, int tokens, int hidden, int rows) {                                    \
    __shared__ Shared<Tile<ROW_WARPS, N>> shared;                                             \
    wait_for_previous();                                                                      \
    many<ROW_WARPS, N>({q, scale, total, weight, out, tokens, hidden / BLOCK, rows}, shared); \
  }
TILES(linear_tiles_64, 2, 4, 3)
TILES(linear_tiles, 4, 8, 1)
