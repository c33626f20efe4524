// Work of a thread block: a tile of query heads that share a KV head (GQA) and a few neighbouring
// tokens, which are its rows; a run is those of its tokens that share cells.
#pragma once
#include "attention.cuh"
#include "cache.cuh"

constexpr int WARPS = THREADS / WARP;

struct Inputs {
  const float* q;
  const uint8_t *k, *v;
  const int *lists, *spans, *positions, *cell_positions;
  const float *slopes, *sinks;
  float scale, softcap;
  float *scratch, *out;
  int tokens, heads, head_dim, capacity, kv_heads;
  const int* packed = nullptr;  // pages that each token sees before its cells, if any
};

// Tile shape: `width` heads of one KV head, a slice of its group, for each of `height` tokens.
struct Tiling {
  int width, height, slices;

  __device__ Tiling(int group, int rows)
      : width((group + (group + rows - 1) / rows - 1) / ((group + rows - 1) / rows)),
        height(rows / width),
        slices((group + rows - 1) / rows) {}

  // Of so many slices of a group, and tiles by tokens.
  __device__ Tiling(int group, int tokens, int slices, int tiles)
      : width((group + slices - 1) / slices), height((tokens + tiles - 1) / tiles),
        slices(slices) {}
};

// End of the tokens from `first` on with the same sequence, first cell and number of pages.
static __device__ __forceinline__ int end_of_run(const int* spans, const int* packed, int first,
                                                 int last) {
  int t = first + 1;
  while (t < last && spans[3 * t] == spans[3 * first] &&
         spans[3 * t + 1] == spans[3 * first + 1] && (!packed || packed[t] == packed[first]))
    ++t;
  return t;
}

// A block's tile: `width` heads from h0 on, of one KV head, for tokens [first, last).
struct Tile {
  int kv_head, h0, width, first, last;

  __device__ Tile(const Inputs& in, const Tiling& tiling, int unit, int number) {
    const int group = in.heads / in.kv_heads;
    kv_head = unit / tiling.slices;
    h0 = kv_head * group + unit % tiling.slices * tiling.width;
    width = min(tiling.width, (kv_head + 1) * group - h0);
    first = number * tiling.height;
    last = min(first + tiling.height, in.tokens);
  }
};

static __device__ __forceinline__ int cells_of(const Inputs& in, int t) {
  return cells_of(in.spans, t);
}

// Tokens [t0, t1), whose cells are prefixes of `list`, of at most `most` cells.
struct Run {
  int t0, t1, h0, width, rows, most;
  const int* list;

  __device__ Run(const Inputs& in, const Tile& tile, int first)
      : t0(first), t1(end_of_run(in.spans, in.packed, first, tile.last)), h0(tile.h0),
        width(tile.width), rows((t1 - t0) * width), most(0) {
    const int sequence = in.spans[3 * t0];
    list = in.lists + static_cast<size_t>(sequence) * in.capacity + in.spans[3 * t0 + 1];
    for (int t = t0; t < t1; ++t) most = max(most, cells_of(in, t));
  }

  // Tokens [first, end) of one head; the list starts at the sequence's first cell.
  __device__ Run(const Inputs& in, int first, int end, int head)
      : t0(first), t1(end), h0(head), width(1), rows(end - first), most(0),
        list(in.lists + static_cast<size_t>(in.spans[3 * first]) * in.capacity) {
    for (int t = t0; t < t1; ++t) most = max(most, cells_of(in, t));
  }

  __device__ int token(int row) const { return t0 + row / width; }
  __device__ int head(int row) const { return h0 + row % width; }

  // Index of a row in q and out, [tokens * heads, head_dim].
  __device__ size_t item(const Inputs& in, int row) const {
    return static_cast<size_t>(token(row)) * in.heads + head(row);
  }

  // How many cells from `begin` on every token sees: a warp shuffle reduction over 32 tokens at a
  // time, since a serial loop would cost as much as the chunk's multiplications.
  __device__ int fewest(const Inputs& in, int begin) const {
    int found = most;
#pragma unroll 1
    for (int t = t0 + static_cast<int>(threadIdx.x) % WARP; t < t1; t += WARP)
      found = min(found, cells_of(in, t));
#pragma unroll
    for (int m = WARP / 2; m; m /= 2) found = min(found, __shfl_xor_sync(ALL, found, m));
    return max(found - begin, 0);
  }
};

// Loads `count` cells of a run from `begin` on, and their positions, zero-padded to a tile of 16.
static __device__ __forceinline__ void load_cells(const Inputs& in, const Run& run, int begin,
                                               int count, int* cells, int* places) {
#pragma unroll 1
  for (int c = threadIdx.x; c < count; c += THREADS) {
    cells[c] = run.list[begin + c];
    places[c] = in.cell_positions[cells[c]];
  }
  for (int c = count + threadIdx.x; c < (count + 15) / 16 * 16; c += THREADS) places[c] = 0;
}

#define INPUTS_BEFORE                                                                              \
  const float *__restrict__ q, const uint8_t *__restrict__ k, const uint8_t *__restrict__ v,       \
      const int *__restrict__ lists, const int *__restrict__ spans,                                \
      const int *__restrict__ positions, const int *__restrict__ cell_positions,                   \
      const float *__restrict__ slopes, const float *__restrict__ sinks, double scale, double softcap
#define INPUTS_BEHIND                                                                              \
  float *__restrict__ scratch, float *__restrict__ out, int tokens, int heads, int head_dim,       \
      int capacity, int kv_heads, int sequences
#define INPUTS INPUTS_BEFORE, INPUTS_BEHIND
#define GIVEN                                                                                   \
  {                                                                                             \
    q, k, v, lists, spans, positions, cell_positions, slopes, sinks, static_cast<float>(scale), \
        static_cast<float>(softcap), scratch, out, tokens, heads, head_dim, capacity, kv_heads, \
  }
