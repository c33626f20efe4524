// Division of work in linear, for all weight formats. Few tokens: a warp computes rows, a lane one
// chain of each. Many: thread blocks compute tiles, walking rows chain by chain (chains.cuh).
#pragma once
#include "chains.cuh"
#include "config.cuh"

constexpr int TILE_THREADS = STEP * TILE;  // each loads an item of a row and of a token

// Iterator over a row's items, chain by chain.
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

// Minimum resident thread blocks per multiprocessor: with one token the compiler would otherwise
// spend registers on more loads in flight, at lower occupancy (assay predict).
template <int TOKENS, int OF_ONE = AT_ONCE_OF_ONE>
constexpr int AT_ONCE = TOKENS == 1 ? OF_ONE : AT_ONCE_OF_FEW;
#define FEW_BOUNDS(...) __launch_bounds__(FEW_WARPS * WARP, AT_ONCE<__VA_ARGS__>)

// Calls use(item, load(item)) for the items of a lane's chain in order, with AHEAD items prefetched
// to registers. The SASS waits for memory once per iteration (conformance/kernel/test_sass.py):
// - An item is used before the load that replaces it is issued. In the other order the compiler
//   copies the item, and the copy waits for the load just issued.
// - The loop body has no condition. After one, prefetches are scheduled among the loads of use(),
//   which hit the cache; both then share a scoreboard, and waiting for one waits for the other.
// The first items are weights, so they are loaded before the preceding kernel has ended.
template <int AHEAD, bool LET_NEXT = true, class Load, class Use>
static __device__ __forceinline__ void for_chain(int items, Load load, Use use) {
  const int lane = threadIdx.x % WARP;
  decltype(load(0)) next[AHEAD];
#pragma unroll
  for (int d = 0; d < AHEAD; ++d) next[d] = load(min(lane + d * CHAINS, items - 1));
  do wait_for_previous<LET_NEXT>();
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

// Epilogue: reduces the chains of ROWS rows from `row` on and stores the sums; `partial` is the
// warp's own shared memory.
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

// Rows per thread block if each warp computes ROWS.
template <int ROWS>
constexpr int BLOCK_ROWS = FEW_WARPS * ROWS;

// A weight's rows and their output; a thread block computes those from `first` on. In block formats
// `matrices` of `count` rows each may be packed as one, of which this is number `matrix`.
struct Rows {
  const uint8_t* weight;
  float* out;
  int count, first, matrix = 0, matrices = 1;
};

// Selects this thread block's weight among N that multiply the same tokens.
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
