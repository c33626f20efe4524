// attention_few.cu on tensor cores: a block does a chunk of 16 rows, each warp a quarter of it.
#include "attention_tensor.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 2) attention_tensor_few(INPUTS) {
  DYNAMIC_SHARED(uint8_t, memory);
  __shared__ float highest[WARPS][ROWS], totals[WARPS][ROWS];
  __shared__ __align__(16) int cells[CHUNK], places[CHUNK], spoilt[WIDEST];
  __shared__ uint4 weights[2][STEPS][WARP];  // as each lane has them: upper parts, then lower ones
  __shared__ Row known[ROWS];
  const Inputs in = GIVEN;
  const int stride = stride_of<f16>(head_dim), bytes = head_bytes<f16>(head_dim);
  uint8_t *const keys = memory, *const values = keys + CHUNK * stride;
  uint8_t* const queries = values + CHUNK * stride;
  const Tile tile(in, Tiling(heads / kv_heads, ROWS), blockIdx.y, blockIdx.z);
  const size_t row_bytes = static_cast<size_t>(bytes) * kv_heads;
  const size_t column = static_cast<size_t>(tile.kv_head) * bytes;
  const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4;
  const int begin = blockIdx.x * CHUNK, quarter = warp * QUARTER;
  const Partials to(scratch, tokens, heads, head_dim, capacity);
  for (int t = tile.first; t < tile.last;) {
    const Run run(in, tile, t);
    t = run.t1;
    const int most = min(run.most - begin, CHUNK), fewest = run.fewest(in, begin);
    if (most <= 0) continue;
    __syncthreads();  // all are done with the run before
    look_up(in, run, begin, most, cells, places);
    __syncthreads();
    bring_filled(keys, stride, k + column, row_bytes, cells, most, bytes);
    bring_filled(values, stride, v + column, row_bytes, cells, most, bytes);
    bring_rows(in, run, queries, known, ROWS);
    await_copies<1>();
    __syncthreads();
    float score[TILES][4], top[2] = {-INFINITY, -INFINITY};
    if (quarter < most) {
      scores<TILES>(score, in, known, queries, ROWS * stride, keys + quarter * stride, places, begin,
                    quarter, most - quarter);
#pragma unroll
      for (int j = 0; j < TILES; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) top[e / 2] = fmaxf(top[e / 2], score[j][e]);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      top[i] = max_of_four(top[i]);
      if (lane % 4 == 0) highest[warp][g + 8 * i] = top[i];
    }
    await_copies<0>();
    __syncthreads();
    if (fewest < most) clean(values, stride, head_dim, fewest, most, spoilt);
    if (quarter < most) {
      uint32_t upper[QUARTER / 16][4], lower[QUARTER / 16][4];
      float total[2];
#pragma unroll
      for (int w = 0; w < WARPS; ++w)
#pragma unroll
        for (int i = 0; i < 2; ++i) top[i] = fmaxf(top[i], highest[w][g + 8 * i]);
      weigh(upper, lower, total, score, top);
      if (lane % 4 == 0) totals[warp][g] = total[0], totals[warp][g + 8] = total[1];
#pragma unroll
      for (int k = 0; k < QUARTER / 16; ++k) {
        const int step = quarter / 16 + k;
        weights[0][step][lane] = {upper[k][0], upper[k][1], upper[k][2], upper[k][3]};
        weights[1][step][lane] = {lower[k][0], lower[k][1], lower[k][2], lower[k][3]};
      }
    }
    __syncthreads();
    if (const int d = warp * SLICE; d < head_dim) {
      uint32_t upper[STEPS][4], lower[STEPS][4];
#pragma unroll
      for (int k = 0; k < STEPS; ++k) {
        if (16 * k >= most) break;
        const uint4 above = weights[0][k][lane], below = weights[1][k][lane];
        upper[k][0] = above.x, upper[k][1] = above.y, upper[k][2] = above.z, upper[k][3] = above.w;
        lower[k][0] = below.x, lower[k][1] = below.y, lower[k][2] = below.z, lower[k][3] = below.w;
      }
      float sum[SLICE / TILE][4];
      weighted_sum(sum, upper, lower, values + 2 * d, stride, most);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row = g + 8 * i, seen = min(known[row].cells - begin, most);
        if (seen <= 0) continue;
        const size_t slot = run.item(in, row) * chunks_of(capacity) + blockIdx.x;
#pragma unroll
        for (int n = 0; n < SLICE / TILE; ++n)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const int at_d = d + TILE * n + lane % 4 * 2 + e;
            const bool bad = fewest < most && spoilt[at_d] < seen;
            to.sums[slot * head_dim + at_d] = bad ? INFINITY - INFINITY : sum[n][2 * i + e];
          }
      }
    }
    for (int row = threadIdx.x; row < run.rows; row += THREADS) {
      if (known[row].cells <= begin) continue;
      const size_t slot = run.item(in, row) * chunks_of(capacity) + blockIdx.x;
      float total = 0.f, top_of_all = -INFINITY;
      for (int w = 0; w * QUARTER < most; ++w) {
        top_of_all = fmaxf(top_of_all, highest[w][row]);
        total += totals[w][row];
      }
      to.highest[slot] = top_of_all;
      to.totals[slot] = total;
    }
  }
}
