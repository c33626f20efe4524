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

// Blocks of threads that a multiprocessor has to have room for: with one token the compiler would
// rather ask for more at once and have fewer warps that wait (assay predict).
template <int TOKENS, int OF_ONE = 6>
constexpr int AT_ONCE = TOKENS == 1 ? OF_ONE : 2;
#define FEW_BOUNDS(...) __launch_bounds__(FEW_WARPS * WARP, AT_ONCE<__VA_ARGS__>)

// Gives use(item, load(item)) the items of a lane's chain in their order, AHEAD of them on their way
// from memory. As machine code this waits for memory once a turn (conformance/kernel/test_sass.py):
// - An item is used before the next is asked for in its place. The other way round the compiler
//   copies it, and a copy waits for what has just been asked for.
// - A turn has no condition. Behind one the loads of a step stand together with what use() loads,
//   which is near; they come to share a scoreboard, and who waits for one waits for both.
// The first items, of weights, are asked for before the kernel before this one has ended.
template <int AHEAD, class Load, class Use>
static __device__ __forceinline__ void for_chain(int items, Load load, Use use) {
  const int lane = threadIdx.x % WARP;
  decltype(load(0)) next[AHEAD];
#pragma unroll
  for (int d = 0; d < AHEAD; ++d) next[d] = load(min(lane + d * CHAINS, items - 1));
  do wait_for_former();
  while (items < 0);
  int first = lane;
  for (; first + (AHEAD - 1) * CHAINS < items; first += AHEAD * CHAINS) {
#pragma unroll
    for (int d = 0; d < AHEAD; ++d) {
      const int item = first + d * CHAINS;
      use(item, next[d]);
      next[d] = load(min(item + AHEAD * CHAINS, items - 1));
    }
  }
#pragma unroll
  for (int d = 0; d < AHEAD; ++d) {
    const int item = first + d * CHAINS;
    if (item < items) use(item, next[d]);
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

// A weight's rows and where their products go; a block of threads has those from `first` on. Block
// formats may have `matrices` of as many rows packed as one, of which this is the one of that number.
struct Rows {
  const uint8_t* weight;
  float* out;
  int count, first, matrix = 0, matrices = 1;
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
