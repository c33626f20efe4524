// Attention on tensor cores (mma.sync), over caches in float16, for head_dim 64 or 128.
//
// Queries and weights are split into two float16, which keep 22 bits: two MMAs for each product of
// float32. A query row is scaled below 2^15 by a power of 2, and weights by 2^15; the bound allows
// for what underflows (bound_f16x2 in reference/attention/attention.py).
//
// A warp computes 16 rows. MMA results of a row do not depend on the other rows, so bits are the
// same for few tokens, where warps divide a chunk of some rows (scores by quarters of its cells,
// then sums by slices of head_dim), and for many tokens, where each warp computes its own rows.
#pragma once
#include "attention_run.cuh"
#include "split.cuh"

constexpr int ROWS = TENSOR_ROWS;      // per warp
constexpr int TILE = 8;                // n of an MMA: cells or elements
constexpr int QUARTER = CHUNK / 4;     // cells
constexpr int TILES = QUARTER / TILE;  // per quarter
constexpr int STEPS = CHUNK / 16;      // MMAs along the cells of a weighted sum
constexpr int SLICE = 32;              // elements of head_dim
constexpr int WIDEST = 128;  // largest head_dim

// Bytes of a head's row, and its stride in shared memory: the padding avoids bank conflicts between
// lanes that read consecutive rows (ldmatrix).
template <int HEAD_DIM>
constexpr int BYTES = 2 * HEAD_DIM;
template <int HEAD_DIM>
constexpr int STRIDE = BYTES<HEAD_DIM> + 16;

// ldmatrix.x4.trans: as load_matrices, but elements g of rows 2t and 2t + 1.
static __device__ __forceinline__ void load_transposed(uint32_t (&to)[4], const uint8_t* base,
                                                       unsigned begins) {
#ifdef HOST
  const Lanes rows(begins);
  const int g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
  for (int i = 0; i < 4; ++i)
    to[i] = at<uint16_t>(base + rows[8 * i + 2 * t], g) |
            static_cast<uint32_t>(at<uint16_t>(base + rows[8 * i + 2 * t + 1], g)) << 16;
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(static_cast<unsigned>(__cvta_generic_to_shared(base + begins)))
               : "memory");
#endif
}

// A row's parameters; `scale` of its scores.
struct Row {
  float slope, scale;
  int position, cells;
};

// Splits a run's queries into shared memory [2, rows, stride], upper parts first; padding rows are
// zero and see no cell.
template <int HEAD_DIM>
static __device__ __forceinline__ void load_rows(const Inputs& in, const Run& run, uint8_t* q,
                                                  Row* known, int rows) {
  const int lane = threadIdx.x % WARP;
  for (int row = threadIdx.x / WARP; row < rows; row += WARPS) {
    const bool some = row < run.rows;
    const float* const query = in.q + (some ? run.item(in, row) * HEAD_DIM : 0);
    float largest = 0.f;
    for (int d = lane; d < HEAD_DIM && some; d += WARP) largest = fmaxf(largest, fabsf(query[d]));
    largest = warp_max(largest);
    const Power power(largest);
    for (int d = 2 * lane; d < HEAD_DIM; d += 2 * WARP) {
      uint32_t upper = 0, lower = 0;
      if (some) split_in_two(query[d] * power.shrink, query[d + 1] * power.shrink, upper, lower);
      if (largest == INFINITY) lower = 0;  // inf - inf is NaN, and no other lower part matters
      reinterpret_cast<uint32_t*>(q + row * STRIDE<HEAD_DIM>)[d / 2] = upper;
      reinterpret_cast<uint32_t*>(q + (rows + row) * STRIDE<HEAD_DIM>)[d / 2] = lower;
    }
    if (lane == 0) {
      known[row] = {0.f, 0.f, 0, 0};
      if (some)
        known[row] = {in.slopes[run.head(row)], __fmul_rn(in.scale, power.grow),
                      in.positions[run.token(row)], cells_of(in, run.token(row))};
    }
  }
}

// Copies BYTES of `count` cells (cp.async), rows padded by 16 bytes; zero-fills the last tile.
template <int BYTES>
static __device__ __forceinline__ void load_padded(uint8_t* stage, const uint8_t* from,
                                                    size_t row_bytes, const int* cells, int count) {
  constexpr int WORDS = BYTES / 16, STEP = BYTES + 16;
  const int own = threadIdx.x % WORDS * 16;
  // coalesced: a warp copies several rows at once, 16 bytes per lane
  load_column<uint4>(stage + own, STEP, from + own, row_bytes, cells, threadIdx.x / WORDS,
                      THREADS / WORDS, count);
  commit_group();
#pragma unroll 1
  for (int i = threadIdx.x; i < (-count & 15) * WORDS; i += THREADS)
    reinterpret_cast<uint4*>(stage + (count + i / WORDS) * STEP)[i % WORDS] = {0, 0, 0, 0};
}

// Scores of the 16 rows from `known` on with `count` cells in N MMA tiles: dot products, scaled,
// capped and biased; -infinity where a row does not see a cell. The first cell has index `first` in
// the chunk, which starts at cell `begin`. A lane has rows g and g + 8, and cells 2t and 2t + 1 of
// each tile.
template <int HEAD_DIM, int N>
static __device__ __forceinline__ void scores(float (*to)[4], const Inputs& in, const Row* known,
                                              const uint8_t* q, int lower_part,
                                              const uint8_t* keys, const int* places, int begin,
                                              int first, int count) {
  constexpr int stride = STRIDE<HEAD_DIM>;
  const int lane = threadIdx.x % WARP;
  const int of_q = lane % 16 * stride + lane / 16 * 16;
  const int of_keys = (lane / 16 * 8 + lane % 8) * stride + lane / 8 % 2 * 16;
#pragma unroll
  for (int j = 0; j < N; ++j) to[j][0] = to[j][1] = to[j][2] = to[j][3] = 0.f;
#pragma unroll 1
  for (int d = 0; d < HEAD_DIM; d += 16) {
    uint32_t upper[4], lower[4];
    load_matrices(upper, q, of_q + 2 * d);
    load_matrices(lower, q, lower_part + of_q + 2 * d);
#pragma unroll
    for (int j = 0; j < N; j += 2) {
      if (TILE * j >= count) break;
      uint32_t key[4];
      load_matrices(key, keys, of_keys + TILE * j * stride + 2 * d);
      mma_m16n8k16(to[j], lower, {key[0], key[1]});
      mma_m16n8k16(to[j + 1], lower, {key[2], key[3]});
      mma_m16n8k16(to[j], upper, {key[0], key[1]});
      mma_m16n8k16(to[j + 1], upper, {key[2], key[3]});
    }
  }
  const Row rows[2] = {known[lane / 4], known[lane / 4 + 8]};
#pragma unroll
  for (int j = 0; j < N; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e) to[j][e] = __fmul_rn(to[j][e], rows[e / 2].scale);
  if (in.softcap != 0.f) {
    const float inverse = 1.f / in.softcap;
#pragma unroll
    for (int j = 0; j < N; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) to[j][e] = capped(to[j][e], in.softcap, inverse);
  }
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const int cell = first + TILE * j + lane % 4 * 2;
    if (TILE * j < count) {
      const int2 place = *reinterpret_cast<const int2*>(places + cell);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const Row& row = rows[e / 2];
        to[j][e] = biased(to[j][e], row.slope, row.position - (e % 2 ? place.y : place.x));
      }
    }
#pragma unroll
    for (int e = 0; e < 4; ++e)
      if (begin + cell + e % 2 >= rows[e / 2].cells) to[j][e] = -INFINITY;
  }
}

// Shuffle reductions over the four lanes that share rows.
static __device__ __forceinline__ float sum_of_four(float x) {
  x += __shfl_xor_sync(ALL, x, 1);
  return x + __shfl_xor_sync(ALL, x, 2);
}

static __device__ __forceinline__ float max_of_four(float x) {
  x = fmaxf(x, __shfl_xor_sync(ALL, x, 1));
  return fmaxf(x, __shfl_xor_sync(ALL, x, 2));
}

// Softmax weights of a quarter's scores as A fragments, and their sums for both rows.
static __device__ __forceinline__ void softmax_chunk(uint32_t (*upper)[4], uint32_t (*lower)[4],
                                             float (&total)[2], const float (*score)[4],
                                             const float (&highest)[2]) {
  total[0] = total[1] = 0.f;
#pragma unroll
  for (int j = 0; j < TILES; ++j) {
    float weight[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      weight[e] = __fmul_rn(expf(score[j][e] - finite(highest[e / 2])), LARGE);
      total[e / 2] += weight[e];
    }
    const int word = j % 2 * 2;
    split_in_two(weight[0], weight[1], upper[j / 2][word], lower[j / 2][word]);
    split_in_two(weight[2], weight[3], upper[j / 2][word + 1], lower[j / 2][word + 1]);
  }
  total[0] = sum_of_four(total[0]), total[1] = sum_of_four(total[1]);
}

// Weighted sum of `count` cells' values, a chain over steps of 16 cells (k of an MMA): SLICE
// elements, those of the first cell at `values`.
template <int STRIDE>
static __device__ __forceinline__ void weighted_sum(float (&to)[SLICE / TILE][4],
                                                    const uint32_t (*upper)[4],
                                                    const uint32_t (*lower)[4],
                                                    const uint8_t* values, int count) {
  const int lane = threadIdx.x % WARP, own = lane % 16 * STRIDE + lane / 16 * 16;
#pragma unroll
  for (int n = 0; n < SLICE / TILE; ++n) to[n][0] = to[n][1] = to[n][2] = to[n][3] = 0.f;
#pragma unroll
  for (int k = 0; k < STEPS; ++k) {
    if (16 * k >= count) break;
    uint32_t low[4], high[4];
    load_transposed(low, values, own + 16 * k * STRIDE);
    load_transposed(high, values, own + 16 * k * STRIDE + 32);
    mma_m16n8k16(to[0], lower[k], {low[0], low[1]});
    mma_m16n8k16(to[1], lower[k], {low[2], low[3]});
    mma_m16n8k16(to[2], lower[k], {high[0], high[1]});
    mma_m16n8k16(to[3], lower[k], {high[2], high[3]});
    mma_m16n8k16(to[0], upper[k], {low[0], low[1]});
    mma_m16n8k16(to[1], upper[k], {low[2], low[3]});
    mma_m16n8k16(to[2], upper[k], {high[0], high[1]});
    mma_m16n8k16(to[3], upper[k], {high[2], high[3]});
  }
}

// Zeroes non-finite values of staged cells [first, last), which only some rows see, since a weight
// of 0 does not mask them (0 * inf is NaN). `from` holds for each element the first such cell: a
// row that sees it gets NaN there.
template <int ELEMENTS>
static __device__ __forceinline__ void clean(uint8_t* stage, int first, int last, int* from) {
  for (int d = threadIdx.x; d < ELEMENTS; d += THREADS) {
    int found = CHUNK;
#pragma unroll 1
    for (int c = last - 1; c >= first; --c) {
      half_t& value = reinterpret_cast<half_t*>(stage + c * (2 * ELEMENTS + 16))[d];
      if ((value.bits & 0x7c00) != 0x7c00) continue;
      value = {0};
      found = c;
    }
    from[d] = found;
  }
  __syncthreads();
}
