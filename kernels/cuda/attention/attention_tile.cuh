// A tile of attention in float32: keys and values of a chunk pass through shared memory, for all
// rows. A row's sums are chains in a fixed order, over head_dim for scores and over the cells for
// values, and so the same in any company.
#pragma once
#include "attention_run.cuh"

constexpr int PER_LANE = CHUNK / WARP;
constexpr int EIGHT = 8;  // rows of small tiles

// What a block knows of a row: of all chunks before, and of one chunk.
struct Row {
  float slope, highest, total, chunk_highest, chunk_total;
  Factors by;
  int position, seen;  // cells of the chunk
};

// Shared memory, in this order. `staged` is how many cells' keys or values it holds at a time.
struct Desk {
  uint8_t* stage;
  float *q, *weights;   // [rows, head_dim], [rows, CHUNK]
  int *cells, *places;  // [CHUNK]: cells and their positions
  Row* row;             // [rows]
  int rows, staged;
};

template <class Cache>
static __device__ __forceinline__ Desk desk_at(uint8_t* memory, int rows, int head_dim,
                                               int staged) {
  Desk desk;
  desk.rows = rows;
  desk.staged = staged;
  desk.stage = memory;
  desk.q = reinterpret_cast<float*>(memory + staged * stride_of<Cache>(head_dim));
  desk.weights = desk.q + rows * head_dim;
  desk.cells = reinterpret_cast<int*>(desk.weights + rows * CHUNK);
  desk.places = desk.cells + CHUNK;
  desk.row = reinterpret_cast<Row*>(desk.places + CHUNK);
  return desk;
}

// Rows of a run in shared memory: those beyond see no cell, and spare a thread that has some from
// leaving any out.
static __device__ __forceinline__ int padded(const Desk& desk, const Run& run) {
  return min((run.rows + EIGHT - 1) / EIGHT * EIGHT, desk.rows);
}

static __device__ __forceinline__ void bring_queries(const Inputs& in, const Desk& desk,
                                                     const Run& run) {
  const int rows = padded(desk, run);
  __syncthreads();  // all are done with the run before
  for (int row = threadIdx.x / WARP; row < rows; row += WARPS) {
    const float* const query = in.q + run.item(in, row) * in.head_dim;
    for (int d = threadIdx.x % WARP; d < in.head_dim; d += WARP)
      desk.q[row * in.head_dim + d] = row < run.rows ? query[d] : 0.f;
  }
}

// A run's queries, and what the desk holds of each row.
static __device__ __forceinline__ void bring_rows(const Inputs& in, const Desk& desk,
                                                  const Run& run) {
  bring_queries(in, desk, run);
  for (int row = threadIdx.x; row < padded(desk, run); row += THREADS) {
    if (row < run.rows) {
      desk.row[row].slope = in.slopes[run.head(row)];
      desk.row[row].position = in.positions[run.token(row)];
    }
    desk.row[row].highest = -INFINITY;
    desk.row[row].total = 0.f;
  }
}

// Scores: chains over head_dim, for ROWS rows a thread with CELLS of the cells that are staged.
template <class Cache, int ROWS, int CELLS>
static __device__ __forceinline__ void scores(const Inputs& in, const Desk& desk, const Run& run,
                                              int begin, int count) {
  const int lanes = desk.staged / CELLS, stride = stride_of<Cache>(in.head_dim);
  const int first = static_cast<int>(threadIdx.x) / lanes * ROWS, lane = threadIdx.x % lanes;
  if (first >= run.rows) return;
  const uint8_t* keys[CELLS];
  const float* const queries = desk.q + first * in.head_dim;
#pragma unroll
  for (int j = 0; j < CELLS; ++j) keys[j] = desk.stage + min(lane + j * lanes, count - 1) * stride;
  float sums[ROWS][CELLS] = {};
#pragma unroll 2  // more would not stay in registers
  for (int d = 0; d < in.head_dim; d += 8) {
    float key[CELLS][8];
#pragma unroll
    for (int j = 0; j < CELLS; ++j) decode(Cache(), keys[j], d, key[j]);
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
    for (int j = 0; j < CELLS; ++j) sums[i][j] = __fmul_rn(sums[i][j], in.scale);
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
        desk.weights[row * CHUNK + cell] = biased(sums[i][j], desk.row[row].slope,
                                                  desk.row[row].position - desk.places[cell]);
    }
}

// e^(score - highest) in place of scores, a warp for each row, and how the chunk merges.
static __device__ __forceinline__ void weigh(const Desk& desk, int rows) {
  const int lane = threadIdx.x % WARP;
  for (int row = threadIdx.x / WARP; row < rows; row += WARPS) {
    float* const weights = desk.weights + row * CHUNK + lane;
    const int seen = desk.row[row].seen;
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
      weights[i * WARP] = own[i];
    }
    total = warp_sum(total);
    if (lane == 0) {
      Row& own_row = desk.row[row];
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

// Adds `count` staged values times their weights to the sums of ROWS rows from `first` on, DIMS
// elements from d on of each: chains over the cells. Of the cells from `common` on only some rows
// see each, and what the others do not see may be NaN.
template <class Cache, int ROWS, int DIMS>
static __device__ __forceinline__ void values(float (&sums)[ROWS][DIMS], const Inputs& in,
                                              const Desk& desk, int first, int d, int begin,
                                              int count, int common) {
  const int stride = stride_of<Cache>(in.head_dim);
  const float* const weights = desk.weights + first * CHUNK + begin;
  int c = 0;
  for (; c + 4 <= common; c += 4) {
    float value[4][DIMS];
#pragma unroll
    for (int j = 0; j < 4; ++j) decode(Cache(), desk.stage + (c + j) * stride, d, value[j]);
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
    float value[DIMS];
    decode(Cache(), desk.stage + c * stride, d, value);
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
      if (begin + c >= desk.row[first + i].seen) continue;
#pragma unroll
      for (int e = 0; e < DIMS; ++e)
        sums[i][e] = fmaf(weights[i * CHUNK + c], value[e], sums[i][e]);
    }
  }
}

// What a chunk gives, once its cells and what each row sees of them are on the desk: `most` cells,
// of which every row sees the first `fewest`; SCORES rows and CELLS cells a thread for scores, ROWS
// rows from `first` on and DIMS elements from d on for values.
template <class Cache, int SCORES, int CELLS, int ROWS, int DIMS>
static __device__ __forceinline__ void sum_chunk(float (&sums)[ROWS][DIMS], const Inputs& in,
                                                 const Desk& desk, const Run& run, int kv_head,
                                                 int first, int d, int most, int fewest) {
  const int bytes = head_bytes<Cache>(in.head_dim);
  const size_t row_bytes = static_cast<size_t>(bytes) * in.kv_heads;
  const uint8_t* const keys = in.k + static_cast<size_t>(kv_head) * bytes;
  const uint8_t* const all_values = in.v + static_cast<size_t>(kv_head) * bytes;
  for (int c = 0; c < most; c += desk.staged) {
    const int count = min(desk.staged, most - c);
    bring<Cache>(desk.stage, keys, row_bytes, desk.cells + c, count, in.head_dim);
    await_copies<0>();
    __syncthreads();
    scores<Cache, SCORES, CELLS>(in, desk, run, c, count);
    __syncthreads();
  }
  for (int c = 0; c < most; c += desk.staged) {
    const int count = min(desk.staged, most - c), common = min(max(fewest - c, 0), count);
    bring<Cache>(desk.stage, all_values, row_bytes, desk.cells + c, count, in.head_dim);
    if (c == 0) weigh(desk, padded(desk, run));
    await_copies<0>();
    __syncthreads();
    if (first < run.rows)
      values<Cache, ROWS, DIMS>(sums, in, desk, first, d, c, count, common);
    if (c + desk.staged < most) __syncthreads();
  }
}

// Chunks first to last of a run: SCORES rows and CELLS cells a thread for scores, ROWS rows and
// DIMS elements for values. With FEW_TOKENS the one chunk's results go to scratch, else the mean to
// out.
template <class Cache, bool FEW_TOKENS, int SCORES, int CELLS, int ROWS, int DIMS>
static __device__ __forceinline__ void attend(const Inputs& in, const Desk& desk, const Run& run,
                                              int kv_head, int first_chunk, int last_chunk) {
  const int rows = padded(desk, run), pieces = in.head_dim / DIMS;
  const int first = static_cast<int>(threadIdx.x) / pieces * ROWS, d = threadIdx.x % pieces * DIMS;
  float means[ROWS][DIMS] = {};
  for (int chunk = first_chunk; chunk < last_chunk; ++chunk) {
    const int begin = chunk * CHUNK, most = min(run.most - begin, CHUNK);
    const int fewest = run.fewest(in, begin);
    __syncthreads();
    look_up(in, run, begin, most, desk.cells, desk.places);
    for (int row = threadIdx.x; row < rows; row += THREADS) {
      const int cells = row < run.rows ? cells_of(in, run.token(row)) : 0;
      desk.row[row].seen = min(max(cells - begin, 0), CHUNK);
    }
    __syncthreads();
    float sums[ROWS][DIMS] = {};
    sum_chunk<Cache, SCORES, CELLS>(sums, in, desk, run, kv_head, first, d, most, fewest);
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
      const int row = first + i;
      if (row >= run.rows || desk.row[row].seen == 0) continue;
      if (FEW_TOKENS) {
        const Partials to(in.scratch, in.tokens, in.heads, in.head_dim, in.capacity);
        const size_t slot = run.item(in, row) * chunks_of(in.capacity) + chunk;
#pragma unroll
        for (int e = 0; e < DIMS; ++e) to.sums[slot * in.head_dim + d + e] = sums[i][e];
        if (d == 0) {
          to.highest[slot] = desk.row[row].chunk_highest;
          to.totals[slot] = desk.row[row].chunk_total;
        }
      } else {
        const Factors by = desk.row[row].by;
#pragma unroll
        for (int e = 0; e < DIMS; ++e) means[i][e] = merged(means[i][e], sums[i][e], by);
      }
    }
  }
  if constexpr (!FEW_TOKENS) {
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
      const int row = first + i;
      if (row >= run.rows) continue;
      const size_t to = run.item(in, row) * in.head_dim;
      const bool some = cells_of(in, run.token(row)) > 0;
      const Row& own = desk.row[row];
      const float sink = in.sinks[run.head(row)];
      const float inverse = some ? Ending(own.highest, own.total, sink).inverse() : 0.f;
#pragma unroll
      for (int e = 0; e < DIMS; ++e) in.out[to + d + e] = some ? means[i][e] * inverse : 0.f;
    }
  }
}

// Up to N rows a thread, of those up to EIGHT that a run has.
template <class Cache, bool FEW_TOKENS, int N>
static __device__ __forceinline__ void attend_up_to(const Inputs& in, const Desk& desk,
                                                    const Run& run, int kv_head, int first,
                                                    int last) {
  if constexpr (N < EIGHT)
    if (THREADS / desk.staged * N < run.rows || THREADS / (in.head_dim / 2) * N < run.rows)
      return attend_up_to<Cache, FEW_TOKENS, 2 * N>(in, desk, run, kv_head, first, last);
  attend<Cache, FEW_TOKENS, N, 1, N, 2>(in, desk, run, kv_head, first, last);
}
