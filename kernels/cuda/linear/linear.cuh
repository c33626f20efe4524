// How linear's work is cut, for weights of every kind: for few tokens a warp takes rows, for many a
// block of threads takes a tile and goes through its rows chain by chain (chains.cuh).
#pragma once
#include "chains.cuh"

constexpr int FEW_WARPS = 4;  // of a block of threads, for few tokens

constexpr int TILE = 64;  // rows, and tokens
constexpr int STEP = 2;   // items of a row that are in shared memory at once
constexpr int TILE_THREADS = STEP * TILE;  // each brings an item of a row and one of a token

// Where a walk through a row's items is, chain by chain.
struct Walk {
  int items, item = 0, chain = 0;

  __device__ explicit Walk(int items) : items(items) {}
  __device__ bool inside() const { return chain < CHAINS && item < items; }
  __device__ bool ends_chain() const { return item + CHAINS >= items; }
  __device__ void next() {
    item += CHAINS;
    if (item >= items) item = ++chain;
  }
};

// Gives use(item, load(item)) the items of a lane's chain in their order, DEPTH of them on their way
// from memory while the one before is used.
template <int DEPTH, class Load, class Use>
static __device__ __forceinline__ void for_chain(int items, Load load, Use use) {
  const int lane = threadIdx.x % WARP;
  decltype(load(0)) next[DEPTH];
#pragma unroll
  for (int d = 0; d < DEPTH; ++d) next[d] = load(min(lane + d * CHAINS, items - 1));
  for (int first = lane; first < items; first += DEPTH * CHAINS) {
#pragma unroll
    for (int d = 0; d < DEPTH; ++d) {
      const int item = first + d * CHAINS;
      if (item < items) use(item, next[d]);
      next[d] = load(min(item + DEPTH * CHAINS, items - 1));
    }
  }
}

// The sums of all lanes' chains, for ROWS rows from `row` on; `partial` is shared memory of the
// warp's own.
template <int ROWS, int TOKENS>
static __device__ __forceinline__ void add_chains(const float (&sums)[ROWS][TOKENS], float* partial,
                                                  float* __restrict__ out, int tokens, int rows,
                                                  int row) {
  const float sum = sum_of_chains(sums, partial);
  const int lane = threadIdx.x % WARP, token = lane % TOKENS;
  row += lane / TOKENS;
  if (lane < ROWS * TOKENS && token < tokens && row < rows)
    out[static_cast<size_t>(token) * rows + row] = sum;
}

// Of a block of threads whose warps take ROWS each.
template <int ROWS>
constexpr int BLOCK_ROWS = FEW_WARPS * ROWS;

// A weight's rows and where their products go; a block of threads has those from `first` on.
struct Rows {
  const uint8_t* weight;
  float* out;
  int count, first;
};

// Of weights that meet the same tokens the one that this block of threads is for.
template <int ROWS, int N>
static __device__ __forceinline__ Rows own_rows(const Rows (&weights)[N]) {
  Rows own = weights[0];
  int block = blockIdx.x;
#pragma unroll
  for (int i = 1; i < N; ++i) {
    const int blocks = (own.count + BLOCK_ROWS<ROWS> - 1) / BLOCK_ROWS<ROWS>;
    if (block < blocks) break;
    block -= blocks;
    own = weights[i];
  }
  own.first = block * BLOCK_ROWS<ROWS>;
  return own;
}
