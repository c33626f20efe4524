// Attention over packed pages of a text's first tokens, then over the cells of the others, which
// begin a new chunk. `Pages` defines a page's tokens (GROUP) and a chunk's sums over pages.
#pragma once
#include "attention_merge.cuh"
#include "attention_tile.cuh"

struct Paged {
  const uint8_t *k, *v;      // [pages, kv_heads, page]
  const int *lists, *packed; // [sequences, slots] page table; [tokens] page counts
  int slots;

  // A page of the run's page table, in the pool of keys or values.
  __device__ const uint8_t* page(const uint8_t* pages, const Inputs& in, const Run& run, int kv_head,
                                 int place, int size) const {
    const int number = lists[static_cast<size_t>(in.spans[3 * run.t0]) * slots + place];
    return pages + (static_cast<size_t>(number) * in.kv_heads + kv_head) * size;
  }
};

// Makes all rows of a run see the `most` tokens of a chunk of pages, from token `begin` on.
static __device__ __forceinline__ void see(const Workspace& workspace, const Run& run, int begin,
                                           int most) {
  for (int c = threadIdx.x; c < CHUNK; c += THREADS) workspace.places[c] = begin + c;
  for (int row = threadIdx.x; row < padded(workspace, run); row += THREADS)
    workspace.row[row].seen = row < run.rows ? most : 0;
}

template <class Pages>
struct PagesAndCells {
  Pages pages;
  Cells<f16> cells;

  __device__ int most(const Inputs& in) const {
    return chunks_of(pages.paged.slots * Pages::GROUP) + cells.most(in);
  }
  __device__ int before(int t) const { return chunks_of(pages.paged.packed[t] * Pages::GROUP); }
  __device__ int chunks(const Run& run) const { return before(run.t0) + cells.chunks(run); }
  __device__ bool any(const Inputs& in, int t) const {
    return pages.paged.packed[t] > 0 || cells.any(in, t);
  }

  template <int SCORES, int CELLS, int ROWS, int DIMS>
  __device__ __forceinline__ void sum(float (&sums)[ROWS][DIMS], const Inputs& in,
                                      const Workspace& workspace, const Run& run, int kv_head,
                                      int chunk, int first, int d) const {
    const int of_pages = before(run.t0);
    if (chunk < of_pages)
      pages.template sum<SCORES, CELLS>(sums, in, workspace, run, kv_head, chunk, first, d);
    else
      cells.template sum<SCORES, CELLS>(sums, in, workspace, run, kv_head, chunk - of_pages, first,
                                        d);
  }
};

// Split-KV for up to FEW tokens: a block computes one chunk of a tile and stores partial results.
template <class Cache, class Held>
static __device__ __forceinline__ void attend_few(const Held& held, const Inputs& in,
                                                  uint8_t* memory) {
  const Tiling tiling(in.heads / in.kv_heads, FEW_ROWS);
  const Tile tile(in, tiling, blockIdx.y, blockIdx.z);
  const int chunk = blockIdx.x;
  int rows = 1, staged = CHUNK;
  while (rows < min(tiling.height, in.tokens) * tiling.width) rows *= 2;
  while (staged * stride_of<Cache>(in.head_dim) > BUDGET) staged /= 2;
  const Workspace workspace = workspace_at<Cache>(memory, rows, in.head_dim, staged);
  for (int t = tile.first; t < tile.last;) {
    const Run run(in, tile, t);
    t = run.t1;
    if (held.chunks(run) <= chunk) continue;  // most blocks: the grid covers the capacity
    load_rows(in, workspace, run);
    attend_up_to<true, 1>(held, in, workspace, run, tile.kv_head, chunk, chunk + 1);
  }
}

#define PAGES                                                                    \
  const uint8_t *__restrict__ k_pages, const uint8_t *__restrict__ v_pages,      \
      const int *__restrict__ page_lists, const int *__restrict__ packed
#define GIVEN_PAGES {k_pages, v_pages, page_lists, packed, slots}

// Merges the partial results of split-KV.
#define MERGE_KERNEL(name, group)                                                                 \
  extern "C" __global__ void __launch_bounds__(THREADS)                                           \
      name(const int* __restrict__ spans, const float* __restrict__ sinks,                        \
           const int* __restrict__ packed, const float* __restrict__ scratch,                     \
           float* __restrict__ out, int tokens, int heads, int head_dim, int capacity,            \
           int slots) {                                                                           \
    __shared__ Steps merging;                                                                     \
    const int t = blockIdx.x / heads;                                                             \
    const int chunks = chunks_of(packed[t] * group) + chunks_of(cells_of(spans, t));              \
    const int most = chunks_of(slots * group) + chunks_of(capacity);                              \
    merge(chunks, most, sinks, scratch, 1.f, heads, head_dim, merging,                            \
          [&](bool inside, size_t at, float x) {                                                  \
            if (inside) out[at] = x;                                                              \
          });                                                                                     \
  }
