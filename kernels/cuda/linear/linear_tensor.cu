// linear with F16 and BF16 weights on tensor cores; float32 activations are split (split.cuh).
#include "linear_tensor_tile.cuh"

extern "C" __global__ void FEW_ON_TENSOR_CORES
    linear_tensor_8(const float* x, const uint8_t* weight, float* out, int tokens, int hidden,
                    int rows) {
  DYNAMIC_SHARED(FewShared, shared);
  const int first = static_cast<int>(blockIdx.x) * FEW_ROWS;
  up_to_eight(x, {weight, out, rows, first}, tokens, hidden, *shared);
}

// Splits activations for the tiles; a thread takes a run of a token.
extern "C" __global__ void __launch_bounds__(256)
    split_tokens(const float* __restrict__ x, float* __restrict__ scratch, int tokens, int hidden) {
  wait_for_previous();
  const int runs = items_of(hidden) * (ITEM / RUN);
  const size_t size = static_cast<size_t>(tokens) * runs;
  const size_t number = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const size_t own = number < size ? number : size - 1;  // surplus threads join the shuffles
  const int token = static_cast<int>(own / runs), run = static_cast<int>(own % runs);
  float values[RUN];
  load_x<RUN>(x + static_cast<size_t>(token) * hidden, run * RUN, hidden, values);
  const Activations found(values);
  if (number >= size) return;
  const Parts parts(scratch, tokens, hidden);
#pragma unroll
  for (int p = 0; p < PARTS; ++p) {
    const uint32_t(&words)[4] = found.parts[p];
    reinterpret_cast<uint4*>(parts.part(p, token))[run] = {words[0], words[1], words[2], words[3]};
  }
  if (SCALED && run % RUNS == 0) parts.powers(run / RUNS)[token] = found.power;
}

// Many tokens: tiles of 64 x 64 rows and tokens or, if there are enough of them, 128 x 128.
#define TILES(name, ROW_WARPS, N, AT_ONCE)                                                  \
  extern "C" __global__ void __launch_bounds__(Tile<ROW_WARPS, N>::THREADS, AT_ONCE)        \
      name(const float* x, float* scratch, const uint8_t* weight, float* out, int tokens,   \
           int hidden, int rows) {                                                          \
    using Own = Stage<Tile<ROW_WARPS, N>>;                                                  \
    DYNAMIC_SHARED(Own, stages);                                                            \
    wait_for_previous();                                                                    \
    const Product of = {x,   reinterpret_cast<const T*>(weight), {scratch, tokens, hidden}, \
                        out, tokens, hidden, rows};                                         \
    many<ROW_WARPS, N>(of, stages);                                                         \
  }
TILES(linear_tiles_64, 2, 4, 2)
TILES(linear_tiles, 4, 8, 1)
