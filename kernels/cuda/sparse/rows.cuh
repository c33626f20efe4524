// Products with active rows of a weight in file layout: a warp computes ROWS rows, tile by tile
// through shared memory; lanes load 16 bytes if rows are aligned, else bytes, with the same bits.
#pragma once
#include "chains.cuh"
#include "config.cuh"

// A weight whose neurons' rows are in slots.
struct Weight {
  const uint8_t* __restrict__ bytes;
  const int* __restrict__ slots;
  int stride;  // bytes

  __device__ const uint8_t* row(int neuron) const {
    return bytes + static_cast<size_t>(slots[neuron]) * stride;
  }
  __device__ bool aligned() const {
    return (reinterpret_cast<uint64_t>(bytes) | stride) % sizeof(uint4) == 0;
  }
};

// A tile of BYTES of a row: prefetched into registers, later stored to shared memory.
template <int BYTES>
struct Tile {
  static_assert(BYTES % sizeof(uint4) == 0, "tiles begin where rows are aligned");
  static constexpr int CHUNKS = (BYTES / sizeof(uint4) + WARP - 1) / WARP;  // per lane
  uint4 chunks[CHUNKS];
  const uint8_t* from;
  int size, whole;

  // Loads the tile of `row` from byte `begin` to at most `end`.
  __device__ __forceinline__ void load(const uint8_t* row, int begin, int end, bool aligned) {
    const int lane = threadIdx.x % WARP;
    from = row + begin;
    size = min(BYTES, end - begin);
    whole = aligned ? size / static_cast<int>(sizeof(uint4)) : 0;
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c)
      if (c * WARP + lane < whole)
        chunks[c] = reinterpret_cast<const uint4*>(from)[c * WARP + lane];
  }

  __device__ __forceinline__ void put(uint8_t* tile) const {
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c)
      if (c * WARP + lane < whole) reinterpret_cast<uint4*>(tile)[c * WARP + lane] = chunks[c];
    for (int i = whole * sizeof(uint4) + lane; i < size; i += WARP) tile[i] = from[i];
  }
};

// The list of active neurons, and their mask by token.
struct Active {
  const uint8_t* __restrict__ mask;
  const int* __restrict__ rows;
  int count, neurons;
};

// Stores inactive neurons' zeros, for this thread block's WARPS * ROWS neurons and `tokens` tokens.
static __device__ __forceinline__ void put_zeros(const Active& active, int first, int tokens,
                                                 float* __restrict__ out) {
  constexpr int OWN = WARPS * ROWS;
  for (int i = threadIdx.x; i < tokens * OWN; i += blockDim.x) {
    const int neuron = blockIdx.x * OWN + i % OWN;
    const size_t at = static_cast<size_t>(first + i / OWN) * active.neurons + neuron;
    if (neuron < active.neurons && !active.mask[at]) out[at] = 0.f;
  }
}

// Epilogue: reduces a warp's chains and stores the sums where the mask is set.
template <int TOKENS>
static __device__ __forceinline__ void put_sums(const float (&sums)[ROWS][TOKENS], float* partial,
                                                const Active& active, int entry, int first,
                                                int tokens, float* __restrict__ out) {
  const float sum = sum_of_chains(sums, partial);
  const int lane = threadIdx.x % WARP, token = lane % TOKENS;
  entry += lane / TOKENS;
  if (lane >= ROWS * TOKENS || token >= tokens || entry >= active.count) return;
  const size_t at = static_cast<size_t>(first + token) * active.neurons + active.rows[entry];
  if (active.mask[at]) out[at] = sum;
}

// Sizes of a thread block's shared memory.
template <int BYTES>
constexpr int TILES = WARPS * ROWS * BYTES / sizeof(uint4);
template <int TOKENS>
constexpr int PARTIALS = WARPS * PARTIAL<ROWS, TOKENS>;

// A thread block computes WARPS * ROWS neurons of the list, and stores zeros of as many of all.
// `dot(tiles, tile, first, tokens, sums)` adds products of tile number `tile` of ROWS rows, BYTES
// each, with the tokens from `first` on.
template <int TOKENS, int BYTES, class Dot>
static __device__ __forceinline__ void dot_rows(const Weight& weight, int row_bytes,
                                                 const Active& active, uint4* shared,
                                                 float* partial, int all_tokens,
                                                 float* __restrict__ out, Dot dot) {
  const int first = blockIdx.y * TOKENS, tokens = min(TOKENS, all_tokens - first);
  put_zeros(active, first, tokens, out);
  const int warp = threadIdx.x / WARP, entry = (blockIdx.x * WARPS + warp) * ROWS;
  if (entry >= active.count) return;
  const bool aligned = weight.aligned();
  uint8_t* const tiles = reinterpret_cast<uint8_t*>(shared) + warp * ROWS * BYTES;
  const uint8_t* rows[ROWS];
  Tile<BYTES> coming[ROWS];
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    rows[r] = weight.row(active.rows[min(entry + r, active.count - 1)]);
    coming[r].load(rows[r], 0, row_bytes, aligned);
  }
  float sums[ROWS][TOKENS] = {};
  for (int tile = 0, begin = 0; begin < row_bytes; ++tile) {
#pragma unroll
    for (int r = 0; r < ROWS; ++r) coming[r].put(tiles + r * BYTES);
    __syncwarp();
    begin += BYTES;
    if (begin < row_bytes)
#pragma unroll
      for (int r = 0; r < ROWS; ++r) coming[r].load(rows[r], begin, row_bytes, aligned);
    dot(tiles, tile, first, tokens, sums);
    __syncwarp();
  }
  partial += warp * PARTIAL<ROWS, TOKENS>;
  put_sums<TOKENS>(sums, partial, active, entry, first, tokens, out);
}
