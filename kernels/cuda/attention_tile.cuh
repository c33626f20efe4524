// A tile of attention: the heads that share a KV head, of a few neighbouring tokens, are its rows. A
// block of threads does it; keys and values of a chunk pass through shared memory, for all rows. A
// row's sums are chains in a fixed order, over head_dim for scores and over the cells for values, and
// so the same in any company.
#pragma once
#include "attention.cuh"
#include "cache.cuh"

constexpr int THREADS = 128;
constexpr int WARPS = THREADS / WARP;
constexpr int PER_LANE = CHUNK / WARP;

struct Inputs {
  const float* q;
  const uint8_t *k, *v;
  const int *lists, *spans, *positions, *cell_positions;
  const float* slopes;
  float scale, softcap;
  float *scratch, *out;
  int tokens, heads, head_dim, capacity, kv_heads;
};

// Shared memory, in this order. `staged` is how many cells' keys or values it holds at a time: as
// many as a budget has room for.
struct Desk {
  uint8_t* stage;
  float *q, *weights;                            // [rows, head_dim], [rows, CHUNK]
  int *cells, *where;                            // [CHUNK]: cells and their positions
  int *seen, *position;                          // [rows]: cells of the chunk, the token's position
  float *slope, *highest, *total;                // [rows]: `highest` and `total` of all chunks
  float *chunk_highest, *chunk_total;            // [rows]
  Factors* by;                                   // [rows]
  int staged;
};

// Of a row: what Desk holds beside q and weights.
constexpr int ROW_WORDS = 9;

template <class Cache>
static __device__ __forceinline__ Desk desk_at(uint8_t* memory, int rows, int head_dim, int most,
                                               int budget) {
  const int stride = stride_of<Cache>(head_dim);
  Desk desk;
  desk.staged = most;
  while (desk.staged * stride > budget) desk.staged /= 2;
  desk.stage = memory;
  desk.q = reinterpret_cast<float*>(memory + desk.staged * stride);
  desk.weights = desk.q + rows * head_dim;
  desk.cells = reinterpret_cast<int*>(desk.weights + rows * CHUNK);
  desk.where = desk.cells + CHUNK;
  desk.by = reinterpret_cast<Factors*>(desk.where + CHUNK);
  desk.slope = reinterpret_cast<float*>(desk.by + rows);
  desk.highest = desk.slope + rows;
  desk.total = desk.highest + rows;
  desk.chunk_highest = desk.total + rows;
  desk.chunk_total = desk.chunk_highest + rows;
  desk.seen = reinterpret_cast<int*>(desk.chunk_total + rows);
  desk.position = desk.seen + rows;
  return desk;
}

// Tokens t0 to t1, whose cells begin alike, and `width` heads from h0 on.
struct Run {
  int t0, t1, h0, width, rows, sequence, begin, most;

  __device__ int token(int row) const { return t0 + row / width; }
  __device__ int head(int row) const { return h0 + row % width; }
};

static __device__ __forceinline__ int cells_of(const Inputs& in, int t) {
  return in.spans[3 * t + 2] - in.spans[3 * t + 1];
}

// Of the tokens from t0 on up to `last`; -> Desk.q and what it holds of each row.
static __device__ __forceinline__ Run bring_run(const Inputs& in, const Desk& desk, int t0, int last,
                                                int h0, int width) {
  Run run = {t0, end_of_run(in.spans, t0, last), h0, width, 0, in.spans[3 * t0],
             in.spans[3 * t0 + 1], 0};
  run.rows = (run.t1 - t0) * width;
  for (int t = t0; t < run.t1; ++t) run.most = max(run.most, cells_of(in, t));
  __syncthreads();  // all are done with the run before
  for (int row = threadIdx.x / WARP; row < run.rows; row += WARPS) {
    const size_t from = (static_cast<size_t>(run.token(row)) * in.heads + run.head(row)) * in.head_dim;
    for (int d = threadIdx.x % WARP; d < in.head_dim; d += WARP)
      desk.q[row * in.head_dim + d] = in.q[from + d];
  }
  for (int row = threadIdx.x; row < run.rows; row += THREADS) {
    desk.slope[row] = in.slopes[run.head(row)];
    desk.position[row] = in.positions[run.token(row)];
    desk.highest[row] = lowest();
    desk.total[row] = 0.f;
  }
  return run;
}

// Scores of ROWS rows a thread with CELLS cells each of those that are staged, chains over head_dim.
template <class Cache, int ROWS, int CELLS>
static __device__ __forceinline__ void scores(const Inputs& in, const Desk& desk, const Run& run,
                                              int begin, int count) {
  const int lanes = desk.staged / CELLS, stride = stride_of<Cache>(in.head_dim);
  const int first = static_cast<int>(threadIdx.x) / lanes * ROWS, lane = threadIdx.x % lanes;
  if (first >= run.rows) return;
  const uint8_t* keys[CELLS];
  const float* queries[ROWS];
#pragma unroll
  for (int j = 0; j < CELLS; ++j) keys[j] = desk.stage + min(lane + j * lanes, count - 1) * stride;
#pragma unroll
  for (int i = 0; i < ROWS; ++i) queries[i] = desk.q + min(first + i, run.rows - 1) * in.head_dim;
  float sums[ROWS][CELLS] = {};
  for (int d = 0; d < in.head_dim; d += 8) {
    float key[CELLS][8];
#pragma unroll
    for (int j = 0; j < CELLS; ++j) Cache::some(keys[j], d, key[j]);
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
      const float4 low = reinterpret_cast<const float4*>(queries[i] + d)[0];
      const float4 high = reinterpret_cast<const float4*>(queries[i] + d)[1];
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
      const int row = first + i, cell = begin + lane + j * lanes;
      if (row < run.rows && cell < begin + count)
        desk.weights[row * CHUNK + cell] = score_of(sums[i][j], in.scale, in.softcap, desk.slope[row],
                                                    desk.position[row] - desk.where[cell]);
    }
}

// e^(score - highest) in place of scores, a warp for each row, and how the chunk merges.
static __device__ __forceinline__ void weigh(const Desk& desk, int rows) {
  const int lane = threadIdx.x % WARP;
  for (int row = threadIdx.x / WARP; row < rows; row += WARPS) {
    float* const weights = desk.weights + row * CHUNK + lane;
    const int seen = desk.seen[row];
    float own[PER_LANE], highest = lowest(), total = 0.f;
#pragma unroll
    for (int i = 0; i < PER_LANE; ++i) {
      own[i] = lane + i * WARP < seen ? weights[i * WARP] : lowest();
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
      const float now = fmaxf(desk.highest[row], highest);
      const Factors by = factors(desk.highest[row], highest, now);
      desk.chunk_highest[row] = highest;
      desk.chunk_total[row] = total;
      desk.by[row] = by;
      if (seen > 0) {
        desk.highest[row] = now;
        desk.total[row] = merged(desk.total[row], total, by);
      }
    }
  }
}

// Adds `count` staged values times their weights to the sums of ROWS rows from `first` on, DIMS
// elements from d on of each: chains over the cells. Of the cells from `common` on only some rows
// see each, and what the others do not see may be NaN.
template <class Cache, int ROWS, int DIMS>
static __device__ __forceinline__ void values(float (&sums)[ROWS][DIMS], const Inputs& in,
                                              const Desk& desk, const Run& run, int first, int d,
                                              int begin, int count, int common) {
  const int stride = stride_of<Cache>(in.head_dim);
  const float* weights[ROWS];
#pragma unroll
  for (int i = 0; i < ROWS; ++i) weights[i] = desk.weights + min(first + i, run.rows - 1) * CHUNK + begin;
  int c = 0;
  for (; c + 4 <= common; c += 4) {
    float value[4][DIMS];
#pragma unroll
    for (int j = 0; j < 4; ++j) Cache::some(desk.stage + (c + j) * stride, d, value[j]);
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
      const float4 weight = *reinterpret_cast<const float4*>(weights[i] + c);
#pragma unroll
      for (int e = 0; e < DIMS; ++e) {
        float sum = sums[i][e];
        sum = fmaf(weight.x, value[0][e], sum), sum = fmaf(weight.y, value[1][e], sum);
        sum = fmaf(weight.z, value[2][e], sum), sum = fmaf(weight.w, value[3][e], sum);
        sums[i][e] = sum;
      }
    }
  }
  for (; c < count; ++c) {
    float value[DIMS];
    Cache::some(desk.stage + c * stride, d, value);
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
      if (begin + c >= desk.seen[min(first + i, run.rows - 1)]) continue;
#pragma unroll
      for (int e = 0; e < DIMS; ++e) sums[i][e] = fmaf(weights[i][c], value[e], sums[i][e]);
    }
  }
}

// Chunks first to last of a run: SCORES rows and CELLS cells a thread for scores, ROWS rows and DIMS
// elements for values. With FEW_TOKENS the one chunk's results go to scratch, else the mean to out.
template <class Cache, bool FEW_TOKENS, int SCORES, int CELLS, int ROWS, int DIMS>
static __device__ __forceinline__ void attend(const Inputs& in, const Desk& desk, const Run& run,
                                              int kv_head, int first_chunk, int last_chunk) {
  const int bytes = head_bytes<Cache>(in.head_dim), pieces = in.head_dim / DIMS;
  const size_t row_bytes = static_cast<size_t>(bytes) * in.kv_heads;
  const uint8_t* const keys = in.k + static_cast<size_t>(kv_head) * bytes;
  const uint8_t* const all_values = in.v + static_cast<size_t>(kv_head) * bytes;
  const int* const list = in.lists + static_cast<size_t>(run.sequence) * in.capacity + run.begin;
  const int first = static_cast<int>(threadIdx.x) / pieces * ROWS, d = threadIdx.x % pieces * DIMS;
  float means[ROWS][DIMS] = {};
  for (int chunk = first_chunk; chunk < last_chunk; ++chunk) {
    const int begin = chunk * CHUNK, most = min(run.most - begin, CHUNK);
    int fewest = most;
    for (int t = run.t0; t < run.t1; ++t) fewest = min(fewest, cells_of(in, t) - begin);
    __syncthreads();
    for (int c = threadIdx.x; c < most; c += THREADS) {
      desk.cells[c] = list[begin + c];
      desk.where[c] = in.cell_positions[desk.cells[c]];
    }
    for (int row = threadIdx.x; row < run.rows; row += THREADS)
      desk.seen[row] = min(max(cells_of(in, run.token(row)) - begin, 0), CHUNK);
    __syncthreads();
    for (int c = 0; c < most; c += desk.staged) {
      const int count = min(desk.staged, most - c);
      bring<Cache>(desk.stage, keys, row_bytes, desk.cells + c, count, in.head_dim);
      await_copies<0>();
      __syncthreads();
      scores<Cache, SCORES, CELLS>(in, desk, run, c, count);
      __syncthreads();
    }
    float sums[ROWS][DIMS] = {};
    for (int c = 0; c < most; c += desk.staged) {
      const int count = min(desk.staged, most - c), common = min(max(fewest - c, 0), count);
      bring<Cache>(desk.stage, all_values, row_bytes, desk.cells + c, count, in.head_dim);
      if (c == 0) weigh(desk, run.rows);
      await_copies<0>();
      __syncthreads();
      if (first < run.rows)
        values<Cache, ROWS, DIMS>(sums, in, desk, run, first, d, c, count, common);
      if (c + desk.staged < most) __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
      const int row = first + i;
      if (row >= run.rows || desk.seen[row] == 0) continue;
      if (FEW_TOKENS) {
        const Partials to(in.scratch, in.tokens, in.heads, in.head_dim, in.capacity);
        const size_t at_head = static_cast<size_t>(run.token(row)) * in.heads + run.head(row);
        const size_t slot = at_head * chunks_of(in.capacity) + chunk;
#pragma unroll
        for (int e = 0; e < DIMS; ++e) to.sums[slot * in.head_dim + d + e] = sums[i][e];
        if (d == 0) {
          to.highest[slot] = desk.chunk_highest[row];
          to.totals[slot] = desk.chunk_total[row];
        }
      } else {
        const Factors by = desk.by[row];
#pragma unroll
        for (int e = 0; e < DIMS; ++e) means[i][e] = merged(means[i][e], sums[i][e], by);
      }
    }
  }
  if (FEW_TOKENS) return;
#pragma unroll
  for (int i = 0; i < ROWS; ++i) {
    const int row = first + i;
    if (row >= run.rows) continue;
    const size_t to = (static_cast<size_t>(run.token(row)) * in.heads + run.head(row)) * in.head_dim;
    const bool some = cells_of(in, run.token(row)) > 0;
    const float inverse = some ? 1.f / desk.total[row] : 0.f;
#pragma unroll
    for (int e = 0; e < DIMS; ++e) in.out[to + d + e] = some ? means[i][e] * inverse : 0.f;
  }
}
