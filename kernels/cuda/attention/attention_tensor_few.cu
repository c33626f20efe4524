// attention_few.cu on tensor cores: a block does a chunk of 16 rows, each warp a quarter of it.
#include "attention_tensor.cuh"

struct Shared {
  uint4 weights[2][STEPS][WARP];  // as each lane has them: upper parts, then lower ones
  int cells[CHUNK], places[CHUNK], spoilt[WIDEST];
  float highest[WARPS][ROWS], totals[WARPS][ROWS];
  Row known[ROWS];
};

// `memory` is for keys and values [CHUNK, STRIDE], then queries [2, ROWS, STRIDE].
template <int HEAD_DIM>
static __device__ __forceinline__ void few(const Inputs& in, uint8_t* memory, Shared& shared) {
  constexpr int stride = STRIDE<HEAD_DIM>;
  uint8_t *const keys = memory, *const values = keys + CHUNK * stride;
  uint8_t* const queries = values + CHUNK * stride;
  const Tile tile(in, Tiling(in.heads / in.kv_heads, ROWS), blockIdx.y, blockIdx.z);
  const size_t row_bytes = static_cast<size_t>(BYTES<HEAD_DIM>) * in.kv_heads;
  const size_t column = static_cast<size_t>(tile.kv_head) * BYTES<HEAD_DIM>;
  const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4;
  const int begin = blockIdx.x * CHUNK, quarter = warp * QUARTER;
  const Partials to(in.scratch, in.tokens * in.heads, chunks_of(in.capacity), HEAD_DIM);
  for (int t = tile.first; t < tile.last;) {
    const Run run(in, tile, t);
    t = run.t1;
    const int most = min(run.most - begin, CHUNK), fewest = run.fewest(in, begin);
    if (most <= 0) continue;
    __syncthreads();  // all are done with the run before
    look_up(in, run, begin, most, shared.cells, shared.places);
    __syncthreads();
    bring_filled<BYTES<HEAD_DIM>>(keys, in.k + column, row_bytes, shared.cells, most);
    bring_filled<BYTES<HEAD_DIM>>(values, in.v + column, row_bytes, shared.cells, most);
    bring_rows<HEAD_DIM>(in, run, queries, shared.known, ROWS);
    await_copies<1>();
    __syncthreads();
    float score[TILES][4] = {}, top[2] = {-INFINITY, -INFINITY};
    if (quarter < most) {
      scores<HEAD_DIM, TILES>(score, in, shared.known, queries, ROWS * stride,
                              keys + quarter * stride, shared.places, begin, quarter,
                              most - quarter);
#pragma unroll
      for (int j = 0; j < TILES; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) top[e / 2] = fmaxf(top[e / 2], score[j][e]);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      top[i] = max_of_four(top[i]);
      if (lane % 4 == 0) shared.highest[warp][g + 8 * i] = top[i];
    }
    await_copies<0>();
    __syncthreads();
    if (fewest < most) clean<HEAD_DIM>(values, fewest, most, shared.spoilt);
    if (quarter < most) {
      uint32_t upper[QUARTER / 16][4], lower[QUARTER / 16][4];
      float total[2];
#pragma unroll
      for (int w = 0; w < WARPS; ++w)
#pragma unroll
        for (int i = 0; i < 2; ++i) top[i] = fmaxf(top[i], shared.highest[w][g + 8 * i]);
      weigh(upper, lower, total, score, top);
      if (lane % 4 == 0) shared.totals[warp][g] = total[0], shared.totals[warp][g + 8] = total[1];
#pragma unroll
      for (int k = 0; k < QUARTER / 16; ++k) {
        const int step = quarter / 16 + k;
        shared.weights[0][step][lane] = {upper[k][0], upper[k][1], upper[k][2], upper[k][3]};
        shared.weights[1][step][lane] = {lower[k][0], lower[k][1], lower[k][2], lower[k][3]};
      }
    }
    __syncthreads();
    if (const int d = warp * SLICE; d < HEAD_DIM) {
      uint32_t upper[STEPS][4], lower[STEPS][4];
#pragma unroll
      for (int k = 0; k < STEPS; ++k) {
        if (16 * k >= most) break;
        const uint4 above = shared.weights[0][k][lane], below = shared.weights[1][k][lane];
        upper[k][0] = above.x, upper[k][1] = above.y, upper[k][2] = above.z, upper[k][3] = above.w;
        lower[k][0] = below.x, lower[k][1] = below.y, lower[k][2] = below.z, lower[k][3] = below.w;
      }
      float sum[SLICE / TILE][4];
      weighted_sum<stride>(sum, upper, lower, values + 2 * d, most);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row = g + 8 * i, seen = min(shared.known[row].cells - begin, most);
        if (seen <= 0) continue;
        const size_t slot = run.item(in, row) * chunks_of(in.capacity) + blockIdx.x;
#pragma unroll
        for (int n = 0; n < SLICE / TILE; ++n)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const int at_d = d + TILE * n + lane % 4 * 2 + e;
            const bool bad = fewest < most && shared.spoilt[at_d] < seen;
            to.sums[slot * HEAD_DIM + at_d] = bad ? INFINITY - INFINITY : sum[n][2 * i + e];
          }
      }
    }
    for (int row = threadIdx.x; row < run.rows; row += THREADS) {
      if (shared.known[row].cells <= begin) continue;
      const size_t slot = run.item(in, row) * chunks_of(in.capacity) + blockIdx.x;
      float total = 0.f, top_of_all = -INFINITY;
      for (int w = 0; w * QUARTER < most; ++w) {
        top_of_all = fmaxf(top_of_all, shared.highest[w][row]);
        total += shared.totals[w][row];
      }
      to.highest[slot] = top_of_all;
      to.totals[slot] = total;
    }
  }
}

#define KERNEL(head_dim_)                                                                  \
  extern "C" __global__ void __launch_bounds__(THREADS, 2) attention_tensor_few_##head_dim_( \
      INPUTS) {                                                                            \
    DYNAMIC_SHARED(uint8_t, memory);                                                       \
    __shared__ Shared shared;                                                              \
    few<head_dim_>(GIVEN, memory, shared);                                                 \
  }

KERNEL(64)
KERNEL(128)
