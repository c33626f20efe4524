// Attention tile in float32: keys and values of a chunk are staged in shared memory for all rows.
// Sums are FMA chains in a fixed order, over head_dim for scores and over cells for values, so a
// row's bits do not depend on the other rows.
#pragma once
#include "attention_run.cuh"

constexpr int PER_LANE = CHUNK / WARP;

// Online softmax state of a row: of all chunks so far, and of the current chunk.
struct Row {
  float slope, highest, total, chunk_highest, chunk_total;
  Factors by;
  int position, seen;  // seen: of the chunk's cells
};

// Shared memory layout, in this order; `staged`: cells whose keys are scored at a time.
struct Workspace {
  uint8_t* stage;
  float *q, *weights;   // [rows, head_dim], [rows, CHUNK]
  int *cells, *places;  // [lists, CHUNK]: cells of `lists` chunks; [CHUNK]: positions of one
  Row* row;             // [rows]
  int rows, staged;
};

template <class Cache>
static __device__ __forceinline__ Workspace workspace_at(uint8_t* memory, int rows, int head_dim,
                                               int staged, int held, int lists) {
  Workspace workspace;
  workspace.rows = rows;
  workspace.staged = staged;
  workspace.stage = memory;
  workspace.q = reinterpret_cast<float*>(memory + held * stride_of<Cache>(head_dim));
  workspace.weights = workspace.q + rows * head_dim;
  workspace.cells = reinterpret_cast<int*>(workspace.weights + rows * CHUNK);
  workspace.places = workspace.cells + lists * CHUNK;
  workspace.row = reinterpret_cast<Row*>(workspace.places + CHUNK);
  return workspace;
}

// Room for one stage and for one chunk's cells.
template <class Cache>
static __device__ __forceinline__ Workspace workspace_at(uint8_t* memory, int rows, int head_dim,
                                               int staged) {
  return workspace_at<Cache>(memory, rows, head_dim, staged, staged, 1);
}

// Rows of a run in shared memory, padded to a multiple of FEW_ROWS: padding rows see no cell, so
// register tiles need no predicates.
static __device__ __forceinline__ int padded(const Workspace& workspace, const Run& run) {
  return min((run.rows + FEW_ROWS - 1) / FEW_ROWS * FEW_ROWS, workspace.rows);
}

static __device__ __forceinline__ void load_queries(const Inputs& in, const Workspace& workspace,
                                                     const Run& run) {
  const int rows = padded(workspace, run);
  __syncthreads();  // the previous run's shared memory is free
  for (int row = threadIdx.x / WARP; row < rows; row += WARPS) {
    const float* const query = in.q + run.item(in, row) * in.head_dim;
    for (int d = threadIdx.x % WARP; d < in.head_dim; d += WARP)
      workspace.q[row * in.head_dim + d] = row < run.rows ? query[d] : 0.f;
  }
}

// Loads a run's queries and initializes the state of its rows.
static __device__ __forceinline__ void load_rows(const Inputs& in, const Workspace& workspace,
                                                  const Run& run) {
  load_queries(in, workspace, run);
  for (int row = threadIdx.x; row < padded(workspace, run); row += THREADS) {
    if (row < run.rows) {
      workspace.row[row].slope = in.slopes[run.head(row)];
      workspace.row[row].position = in.positions[run.token(row)];
    }
    workspace.row[row].highest = -INFINITY;
    workspace.row[row].total = 0.f;
  }
}

// Cache rows in shared memory, decoded on use: keys by eight elements, and values. If there are
// `lengths`, a row is multiplied by its own.
template <class Cache>
struct Staged {
  using Key = const uint8_t*;
  const uint8_t* stage;
  int stride;
  const float* lengths;

  __device__ Staged(const uint8_t* stage, int head_dim, const float* lengths = nullptr)
      : stage(stage), stride(stride_of<Cache>(head_dim)), lengths(lengths) {}

  __device__ Key key(int cell) const { return stage + cell * stride; }
  __device__ void read(Key key, int d, float (&x)[8]) const { decode(Cache(), key, d, x); }
  __device__ float times_length(int cell, float x) const {
    return lengths ? __fmul_rn(x, lengths[cell]) : x;
  }

  template <int COUNT, int DIMS>
  __device__ void values(int cell, int d, float (&x)[COUNT][DIMS]) const {
#pragma unroll
    for (int j = 0; j < COUNT; ++j) decode(Cache(), key(cell + j), d, x[j]);
  }
};

// Scores as chains over head_dim: a register tile of ROWS rows x CELLS cells per thread, for
// `count` staged cells, the first of which is the chunk's cell `begin`.
template <int ROWS, int CELLS, class Rows>
static __device__ __forceinline__ void scores(const Rows& staged, const Inputs& in,
                                              const Workspace& workspace, const Run& run, int begin,
                                              int count) {
  const int lanes = workspace.staged / CELLS;
  const int first = static_cast<int>(threadIdx.x) / lanes * ROWS, lane = threadIdx.x % lanes;
  if (first >= run.rows) return;
  typename Rows::Key keys[CELLS];
  const float* const queries = workspace.q + first * in.head_dim;
#pragma unroll
  for (int j = 0; j < CELLS; ++j) keys[j] = staged.key(min(lane + j * lanes, count - 1));
  float sums[ROWS][CELLS] = {};
#pragma unroll 2  // more would spill registers
  for (int d = 0; d < in.head_dim; d += 8) {
    float key[CELLS][8];
#pragma unroll
    for (int j = 0; j < CELLS; ++j) staged.read(keys[j], d, key[j]);
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
      const float4* const query = reinterpret_cast<const float4*>(queries + i * in.head_dim + d);
      const float4 low = query[0], high = query[1];
#pragma unroll
      for (int j = 0; j < CELLS; ++j) {
        float sum = sums[i][j];
        sum = fmaf(low.x, key[j][0], sum), sum = fmaf(low.y, key[j][1], sum);
        sum = fmaf(low.z, key[j][2], sum), sum = fmaf(low.w, key[j][3], sum);
        sum = fmaf(high.x, key[j][4], sum), sum = fmaf(high.y, key[j][5], sum);
        sum = fmaf(high.z, key[j][6], sum), sum = fmaf(high.w, key[j][7], sum);
        sums[i][j] = sum;
      }
    }
  }
#pragma unroll
  for (int i = 0; i < ROWS; ++i)
#pragma unroll
    for (int j = 0; j < CELLS; ++j) {
      const int cell = min(lane + j * lanes, count - 1);
      sums[i][j] = __fmul_rn(staged.times_length(cell, sums[i][j]), in.scale);
    }
  if (in.softcap != 0.f) {
    const float inverse = 1.f / in.softcap;
#pragma unroll
    for (int i = 0; i < ROWS; ++i)
#pragma unroll
      for (int j = 0; j < CELLS; ++j) sums[i][j] = capped(sums[i][j], in.softcap, inverse);
  }
#pragma unroll
  for (int i = 0; i < ROWS; ++i)
#pragma unroll
    for (int j = 0; j < CELLS; ++j) {
      const int row = first + i, cell = begin + lane + j * lanes;
      if (row < run.rows && cell < begin + count)
        workspace.weights[row * CHUNK + cell] =
            biased(sums[i][j], workspace.row[row].slope,
                   workspace.row[row].position - workspace.places[cell]);
    }
}

// Softmax weights e^(score - highest) in place of scores, one warp per row, and the chunk's
// rescaling factors. If values have `lengths`, weights are multiplied by them after summing.
static __device__ __forceinline__ void softmax_chunk(const Workspace& workspace, int rows,
                                             const float* lengths = nullptr) {
  const int lane = threadIdx.x % WARP;
  for (int row = threadIdx.x / WARP; row < rows; row += WARPS) {
    float* const weights = workspace.weights + row * CHUNK + lane;
    const int seen = workspace.row[row].seen;
    float own[PER_LANE], highest = -INFINITY, total = 0.f;
#pragma unroll
    for (int i = 0; i < PER_LANE; ++i) {
      own[i] = lane + i * WARP < seen ? weights[i * WARP] : -INFINITY;
      highest = fmaxf(highest, own[i]);
    }
    highest = warp_max(highest);
#pragma unroll
    for (int i = 0; i < PER_LANE; ++i) {
      own[i] = expf(own[i] - finite(highest));
      total += own[i];
      weights[i * WARP] = lengths ? __fmul_rn(own[i], lengths[lane + i * WARP]) : own[i];
    }
    total = warp_sum(total);
    if (lane == 0) {
      Row& own_row = workspace.row[row];
      own_row.chunk_highest = highest;
      own_row.chunk_total = total;
      const float now = fmaxf(own_row.highest, highest);
      own_row.by = factors(own_row.highest, highest, now);
      if (seen > 0) {
        own_row.total = merged(own_row.total, total, own_row.by);
        own_row.highest = now;
      }
    }
  }
}

// Adds `count` staged values times their weights to a register tile of ROWS rows from `first` on x
// DIMS elements from d on: chains over cells. Cells from `common` on are masked by row: not all
// rows see them, and values that a row does not see may be NaN.
template <class Rows, int ROWS, int DIMS>
static __device__ __forceinline__ void values(const Rows& staged, float (&sums)[ROWS][DIMS],
                                              const Workspace& workspace, int first, int d,
                                              int begin, int count, int common) {
  const float* const weights = workspace.weights + first * CHUNK + begin;
  int c = 0;
  for (; c + 4 <= common; c += 4) {
    float value[4][DIMS];
    staged.values(c, d, value);
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
      const float4 weight = *reinterpret_cast<const float4*>(weights + i * CHUNK + c);
#pragma unroll
      for (int e = 0; e < DIMS; ++e) {
        float sum = sums[i][e];
        sum = fmaf(weight.x, value[0][e], sum), sum = fmaf(weight.y, value[1][e], sum);
        sum = fmaf(weight.z, value[2][e], sum), sum = fmaf(weight.w, value[3][e], sum);
        sums[i][e] = sum;
      }
    }
  }
#pragma unroll 1
  for (; c < count; ++c) {
    float value[1][DIMS];
    staged.values(c, d, value);
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
      if (begin + c >= workspace.row[first + i].seen) continue;
#pragma unroll
      for (int e = 0; e < DIMS; ++e)
        sums[i][e] = fmaf(weights[i * CHUNK + c], value[0][e], sums[i][e]);
    }
  }
}

// Scores of the `most` rows in workspace.cells, which start at `keys` and are `row_bytes` apart.
template <class Cache, int ROWS, int CELLS>
static __device__ __forceinline__ void score_rows(const Inputs& in, const Workspace& workspace,
                                                  const Run& run, const uint8_t* keys,
                                                  size_t row_bytes, int most,
                                                  const float* lengths = nullptr) {
  for (int c = 0; c < most; c += workspace.staged) {
    const int count = min(workspace.staged, most - c);
    fetch<Cache>(workspace.stage, keys, row_bytes, workspace.cells + c, count, in.head_dim);
    await_copies<0>();
    __syncthreads();
    const Staged<Cache> staged(workspace.stage, in.head_dim, lengths ? lengths + c : nullptr);
    scores<ROWS, CELLS>(staged, in, workspace, run, c, count);
    __syncthreads();
  }
}

// Adds the values of the `most` rows in workspace.cells times their weights; every row of the run
// sees the first `fewest`.
template <class Cache, int ROWS, int DIMS>
static __device__ __forceinline__ void add_values(float (&sums)[ROWS][DIMS], const Inputs& in,
                                                  const Workspace& workspace, const Run& run,
                                                  const uint8_t* from, size_t row_bytes, int first,
                                                  int d, int most, int fewest,
                                                  const float* lengths = nullptr) {
  for (int c = 0; c < most; c += workspace.staged) {
    const int count = min(workspace.staged, most - c), common = min(max(fewest - c, 0), count);
    fetch<Cache>(workspace.stage, from, row_bytes, workspace.cells + c, count, in.head_dim);
    if (c == 0) softmax_chunk(workspace, padded(workspace, run), lengths);
    await_copies<0>();
    __syncthreads();
    const Staged<Cache> staged(workspace.stage, in.head_dim);
    if (first < run.rows) values(staged, sums, workspace, first, d, c, count, common);
    if (c + workspace.staged < most) __syncthreads();
  }
}

// Scores and weighted sums of a chunk whose cells and row states are in the workspace: `most`
// cells, of which every row sees the first `fewest`. Register tiles per thread: SCORES rows x CELLS
// cells, and ROWS rows from `first` on x DIMS elements from d on.
template <class Cache, int SCORES, int CELLS, int ROWS, int DIMS>
static __device__ __forceinline__ void sum_chunk(float (&sums)[ROWS][DIMS], const Inputs& in,
                                                 const Workspace& workspace, const Run& run,
                                                 int kv_head, int first, int d, int most,
                                                 int fewest) {
  const int bytes = head_bytes<Cache>(in.head_dim);
  const size_t row_bytes = static_cast<size_t>(bytes) * in.kv_heads;
  const size_t head = static_cast<size_t>(kv_head) * bytes;
  score_rows<Cache, SCORES, CELLS>(in, workspace, run, in.k + head, row_bytes, most);
  add_values<Cache>(sums, in, workspace, run, in.v + head, row_bytes, first, d, most, fewest);
}

// Attention over cells only, chunk by chunk.
template <class Cache>
struct Cells {
  __device__ int most(const Inputs& in) const { return chunks_of(in.capacity); }
  __device__ int chunks(const Run& run) const { return chunks_of(run.most); }
  __device__ bool any(const Inputs& in, int t) const { return cells_of(in, t) > 0; }

  // A chunk's sums (see sum_chunk); sets how many of its cells each row sees.
  template <int SCORES, int CELLS, int ROWS, int DIMS>
  __device__ __forceinline__ void sum(float (&sums)[ROWS][DIMS], const Inputs& in,
                                      const Workspace& workspace, const Run& run, int kv_head,
                                      int chunk, int first, int d) const {
    const int begin = chunk * CHUNK, most = min(run.most - begin, CHUNK);
    const int fewest = run.fewest(in, begin);
    __syncthreads();
    load_cells(in, run, begin, most, workspace.cells, workspace.places);
    for (int row = threadIdx.x; row < padded(workspace, run); row += THREADS) {
      const int cells = row < run.rows ? cells_of(in, run.token(row)) : 0;
      workspace.row[row].seen = min(max(cells - begin, 0), CHUNK);
    }
    __syncthreads();
    sum_chunk<Cache, SCORES, CELLS>(sums, in, workspace, run, kv_head, first, d, most, fewest);
  }
};

// Stores a chunk's partial results (split-KV): ROWS rows from `first` on, DIMS elements from d on.
template <int ROWS, int DIMS>
static __device__ __forceinline__ void store_chunk(const float (&sums)[ROWS][DIMS],
                                                   const Inputs& in, const Workspace& workspace,
                                                   const Run& run, int first, int d, int most,
                                                   int chunk) {
  const Partials to(in.scratch, in.tokens * in.heads, most, in.head_dim);
#pragma unroll
  for (int i = 0; i < ROWS; ++i) {
    const int row = first + i;
    if (row >= run.rows || workspace.row[row].seen == 0) continue;
    const size_t slot = run.item(in, row) * most + chunk;
#pragma unroll
    for (int e = 0; e < DIMS; ++e) to.sums[slot * in.head_dim + d + e] = sums[i][e];
    if (d == 0) {
      to.highest[slot] = workspace.row[row].chunk_highest;
      to.totals[slot] = workspace.row[row].chunk_total;
    }
  }
}

// Processes a range of a run's chunks: register tiles of SCORES rows x CELLS cells for scores, ROWS
// rows x DIMS elements for values. With FEW_TOKENS one chunk's partial results go to scratch,
// otherwise the mean to out.
template <bool FEW_TOKENS, int SCORES, int CELLS, int ROWS, int DIMS, class Held>
static __device__ __forceinline__ void attend(const Held& held, const Inputs& in,
                                              const Workspace& workspace, const Run& run,
                                              int kv_head, int first_chunk, int last_chunk) {
  const int pieces = in.head_dim / DIMS;
  const int first = static_cast<int>(threadIdx.x) / pieces * ROWS, d = threadIdx.x % pieces * DIMS;
  float means[ROWS][DIMS] = {};
  for (int chunk = first_chunk; chunk < last_chunk; ++chunk) {
    float sums[ROWS][DIMS] = {};
    held.template sum<SCORES, CELLS>(sums, in, workspace, run, kv_head, chunk, first, d);
    if constexpr (FEW_TOKENS) {
      store_chunk(sums, in, workspace, run, first, d, held.most(in), chunk);
      continue;
    }
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
      const int row = first + i;
      if (row >= run.rows || workspace.row[row].seen == 0) continue;
      const Factors by = workspace.row[row].by;
#pragma unroll
      for (int e = 0; e < DIMS; ++e) means[i][e] = merged(means[i][e], sums[i][e], by);
    }
  }
  if constexpr (!FEW_TOKENS) {
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
      const int row = first + i;
      if (row >= run.rows) continue;
      const size_t to = run.item(in, row) * in.head_dim;
      const bool some = held.any(in, run.token(row));
      const Row& own = workspace.row[row];
      const float sink = in.sinks[run.head(row)];
      const float inverse = some ? WithSink(own.highest, own.total, sink).inverse() : 0.f;
#pragma unroll
      for (int e = 0; e < DIMS; ++e) in.out[to + d + e] = some ? means[i][e] * inverse : 0.f;
    }
  }
}

// Selects the smallest register tile, from N to FEW_ROWS rows per thread, that covers the run.
template <bool FEW_TOKENS, int N, class Held>
static __device__ __forceinline__ void attend_up_to(const Held& held, const Inputs& in,
                                                    const Workspace& workspace, const Run& run,
                                                    int kv_head, int first, int last) {
  if constexpr (N < FEW_ROWS)
    if (THREADS / workspace.staged * N < run.rows || THREADS / (in.head_dim / 2) * N < run.rows)
      return attend_up_to<FEW_TOKENS, 2 * N>(held, in, workspace, run, kv_head, first, last);
  attend<FEW_TOKENS, N, 1, N, 2>(held, in, workspace, run, kv_head, first, last);
}

// Many tokens: a thread block processes all chunks of a tile of MANY_ROWS, or fewer if head_dim is
// above WIDE. Each warp scores a quarter of the rows.
template <class Cache, class Held>
static __device__ __forceinline__ void attend_many(const Held& held, const Inputs& in,
                                                   uint8_t* memory) {
  constexpr int CELLS = Cache::BYTES == 4 ? 1 : 2;  // per lane
  const int rows = in.head_dim > WIDE ? MANY_ROWS_OF_WIDE : MANY_ROWS;
  // reversed: a prompt's last tiles see most cells and start first
  const Tile tile(in, Tiling(in.heads / in.kv_heads, rows), blockIdx.y, gridDim.x - 1 - blockIdx.x);
  const Workspace workspace = workspace_at<Cache>(memory, rows, in.head_dim, CELLS * WARP);
  for (int t = tile.first; t < tile.last;) {
    const Run run(in, tile, t);
    load_rows(in, workspace, run);
    const int chunks = held.chunks(run);
    if (run.rows <= FEW_ROWS)
      attend_up_to<false, 2>(held, in, workspace, run, tile.kv_head, 0, chunks);
    else if (in.head_dim > WIDE)
      attend<false, 4, CELLS, 8, 4>(held, in, workspace, run, tile.kv_head, 0, chunks);
    else
      attend<false, 8, CELLS, 8, 4>(held, in, workspace, run, tile.kv_head, 0, chunks);
    t = run.t1;
  }
}
