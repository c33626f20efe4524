// Masks of sparse attention patterns: the cells that each head's blocks of queries see.
// best_stripes selects vertical-slash heads' best columns and diagonals: flags of columns and
// prefix counts of diagonals, in scratch [heads, 2, capacity + 1].
#include "prompt_blocks.cuh"
#include "selection.cuh"

enum Kind { A_SHAPE, VERTICAL_SLASH, BLOCK_SPARSE };

extern "C" __global__ void __launch_bounds__(1024)
    best_stripes(const int* __restrict__ kinds, const int* __restrict__ sizes,
                 const float* __restrict__ sums, const int* __restrict__ spans, int64_t first,
                 int64_t recent, int* __restrict__ scratch, int heads, int capacity, int tokens) {
  __shared__ Selection workspace;
  const int h = blockIdx.x, slanted = blockIdx.y, held = held_by(spans, tokens, workspace.counts);
  if (kinds[h] != VERTICAL_SLASH) return;
  const float* const own = sums + (2 * static_cast<size_t>(h) + slanted) * capacity;
  int* const to = scratch + (2 * static_cast<size_t>(h) + slanted) * (capacity + 1);
  const int64_t given = slanted ? recent : first;
  const int always = given < held ? static_cast<int>(given) : held;
  const int others = held - always, wanted = min(others, max(0, sizes[2 * h + slanted] - always));
  const auto key = [&](int i) { return key_of(own[always + i], i); };
  const uint64_t edge = edge_of(workspace, others, wanted, key);
  int found = 0;
  for (int begin = 0; begin < held; begin += blockDim.x) {
    const int j = begin + threadIdx.x;
    const bool takes = j < held && (j < always || key(j - always) >= edge);
    const int nearer = place_of(workspace, takes, found);
    if (j < held) to[j] = slanted ? nearer : takes;
  }
  if (threadIdx.x == 0) to[held] = found;
}

// One thread block per head and first token of a block of queries.
extern "C" __global__ void __launch_bounds__(256)
    prompt_pattern(const int* __restrict__ kinds, const int* __restrict__ sizes,
                   const float* __restrict__ scores, const int* __restrict__ spans,
                   const int* __restrict__ scratch, uint8_t* __restrict__ out, int heads, int rows,
                   int parts, int tokens, int capacity) {
  __shared__ Selection workspace;
  const int b = block_begun(spans, blockIdx.x), h = blockIdx.y, kind = kinds[h];
  if (b < 0) return;
  const int held = held_by(spans, tokens, workspace.counts);
  const int begin = b * QUERIES, end = min(held, begin + QUERIES);
  const int one = sizes[2 * h], other = sizes[2 * h + 1];
  const size_t row = static_cast<size_t>(h) * rows + b % rows;
  const auto key = [&](int part) { return key_of(scores[row * parts + part], part); };
  const uint64_t edge = kind == BLOCK_SPARSE ? edge_of(workspace, b + 1, min(one, b + 1), key) : 0;
  const int* const columns = scratch + 2 * static_cast<size_t>(h) * (capacity + 1);
  const int* const nearer = columns + capacity + 1;
  for (int j = threadIdx.x; j < capacity; j += blockDim.x) {
    bool seen = false;
    if (j < end) {
      if (kind == A_SHAPE)
        seen = j < one || j > begin - other;
      else if (kind == BLOCK_SPARSE)
        seen = key(j / QUERIES) >= edge;
      else
        seen = columns[j] || nearer[min(held, begin + QUERIES - j)] > nearer[max(0, begin - j)];
    }
    out[row * capacity + j] = seen;
  }
}
