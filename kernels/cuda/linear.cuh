// The order of linear's sums, and how work is cut, for weights of every kind.
//
// A row's items, blocks of 32 elements or runs of eight floats, are dealt to 32 chains: chain c adds
// items c, c + 32, c + 64 ... one after the other, and chains are added one after the other. For few
// tokens a warp takes rows and each lane a chain; for many, a block of threads takes a tile and goes
// through its rows chain by chain. So a token's bits don't depend on how many come together.
#pragma once
#include "portable.cuh"

constexpr int CHAINS = WARP;
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
      if (item >= items) continue;
      const auto own = next[d];
      next[d] = load(min(item + DEPTH * CHAINS, items - 1));
      use(item, own);
    }
  }
}

// The sums of all lanes' chains, for ROWS rows from `row` on; `partial` is shared memory of the
// warp's own, a word more than a warp for each sum so that lanes meet in no bank.
template <int ROWS, int TOKENS>
static __device__ __forceinline__ void add_chains(const float (&sums)[ROWS][TOKENS], float* partial,
                                                  float* __restrict__ out, int tokens, int rows,
                                                  int row) {
  static_assert(ROWS * TOKENS <= WARP);
  const int lane = threadIdx.x % WARP;
#pragma unroll
  for (int r = 0; r < ROWS; ++r)
#pragma unroll
    for (int t = 0; t < TOKENS; ++t) partial[(r * TOKENS + t) * (WARP + 1) + lane] = sums[r][t];
  __syncwarp();
  const int token = lane % TOKENS;
  row += lane / TOKENS;
  if (lane >= ROWS * TOKENS || token >= tokens || row >= rows) return;
  float sum = 0.f;
#pragma unroll
  for (int c = 0; c < CHAINS; ++c) sum += partial[lane * (WARP + 1) + c];
  out[static_cast<size_t>(token) * rows + row] = sum;
}
