// attention_few.cu on tensor cores (split-KV): a thread block processes every gridDim.x-th chunk of
// 16 rows, each warp a quarter of its cells. Values are prefetched (cp.async) while scores are
// computed from keys, and the next chunk's keys during the weighted sums.
#include "attention_tensor.cuh"

struct Shared {
  uint4 weights[2][STEPS][WARP];  // A fragments by lane: upper parts, then lower parts
  int cells[2][CHUNK], places[CHUNK], spoilt[WIDEST];  // cells of a chunk and the next
  float highest[WARPS][ROWS], totals[WARPS][ROWS];
  Row known[ROWS];
};

// Loads this block's chunks of a run to shared memory with cp.async.
template <int HEAD_DIM>
struct Turns {
  const Inputs& in;
  const Run& run;
  Shared& shared;
  size_t row_bytes, column;

  __device__ int begin(int turn) const {
    return (static_cast<int>(blockIdx.x) + turn * static_cast<int>(gridDim.x)) * CHUNK;
  }
  __device__ int most(int turn) const { return min(run.most - begin(turn), CHUNK); }

  __device__ void list(int turn) const {
    if (const int c = threadIdx.x; c < most(turn))
      copy_async(&shared.cells[turn % 2][c], run.list + begin(turn) + c);
  }

  // Also loads the chunk's positions and the next chunk's cells. Commits a copy group even if there
  // is no such chunk.
  __device__ void load_keys(int turn, uint8_t* to) const {
    const int count = most(turn);
    const int* const own = shared.cells[turn % 2];
    if (const int c = threadIdx.x; c < count)
      copy_async(&shared.places[c], in.cell_positions + own[c]);
    else if (c < (count + 15) / 16 * 16)
      shared.places[c] = 0;
    list(turn + 1);
    load_padded<BYTES<HEAD_DIM>>(to, in.k + column, row_bytes, own, max(count, 0));
  }
  __device__ void load_values(int turn, uint8_t* to) const {
    load_padded<BYTES<HEAD_DIM>>(to, in.v + column, row_bytes, shared.cells[turn % 2],
                                  max(most(turn), 0));
  }
};

// `memory`: keys and values, [CHUNK, STRIDE] each, then queries [2, ROWS, STRIDE].
template <int HEAD_DIM>
static __device__ __forceinline__ void few(const Inputs& in, uint8_t* memory, Shared& shared) {
  constexpr int stride = STRIDE<HEAD_DIM>;
  uint8_t *const keys = memory, *const values = keys + CHUNK * stride;
  uint8_t* const queries = values + CHUNK * stride;
  const Tile tile(in, Tiling(in.heads / in.kv_heads, ROWS), blockIdx.y, blockIdx.z);
  const size_t row_bytes = static_cast<size_t>(BYTES<HEAD_DIM>) * in.kv_heads;
  const size_t column = static_cast<size_t>(tile.kv_head) * BYTES<HEAD_DIM>;
  const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4;
  const int quarter = warp * QUARTER, all = chunks_of(in.capacity);
  const Partials to(in.scratch, in.tokens * in.heads, all, HEAD_DIM);
  for (int t = tile.first; t < tile.last;) {
    const Run run(in, tile, t);
    t = run.t1;
    const Turns<HEAD_DIM> turns = {in, run, shared, row_bytes, column};
    if (turns.begin(0) >= run.most) continue;
    __syncthreads();  // the previous run's shared memory is free
    turns.list(0);
    commit_group();
    load_rows<HEAD_DIM>(in, run, queries, shared.known, ROWS);
    await_copies<0>();
    __syncthreads();
    turns.load_keys(0, keys);
    turns.load_values(0, values);
#pragma unroll 1
    for (int turn = 0; turns.begin(turn) < run.most; ++turn) {
      const int begin = turns.begin(turn), chunk = begin / CHUNK, most = turns.most(turn);
      const int fewest = run.fewest(in, begin);
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
      __syncthreads();
      turns.load_keys(turn + 1, keys);
      if (quarter < most) {
        uint32_t upper[QUARTER / 16][4], lower[QUARTER / 16][4];
        float total[2];
#pragma unroll
        for (int w = 0; w < WARPS; ++w)
#pragma unroll
          for (int i = 0; i < 2; ++i) top[i] = fmaxf(top[i], shared.highest[w][g + 8 * i]);
        softmax_chunk(upper, lower, total, score, top);
        if (lane % 4 == 0)
          shared.totals[warp][g] = total[0], shared.totals[warp][g + 8] = total[1];
#pragma unroll
        for (int k = 0; k < QUARTER / 16; ++k) {
          const int step = quarter / 16 + k;
          shared.weights[0][step][lane] = {upper[k][0], upper[k][1], upper[k][2], upper[k][3]};
          shared.weights[1][step][lane] = {lower[k][0], lower[k][1], lower[k][2], lower[k][3]};
        }
      }
      await_copies<1>();
      __syncthreads();
      if (fewest < most) clean<HEAD_DIM>(values, fewest, most, shared.spoilt);
      if (const int d = warp * SLICE; d < HEAD_DIM) {
        uint32_t upper[STEPS][4], lower[STEPS][4];
#pragma unroll
        for (int k = 0; k < STEPS; ++k) {
          if (16 * k >= most) break;
          const uint4 above = shared.weights[0][k][lane], below = shared.weights[1][k][lane];
          upper[k][0] = above.x, upper[k][1] = above.y, upper[k][2] = above.z;
          upper[k][3] = above.w, lower[k][0] = below.x, lower[k][1] = below.y;
          lower[k][2] = below.z, lower[k][3] = below.w;
        }
        float sum[SLICE / TILE][4];
        weighted_sum<stride>(sum, upper, lower, values + 2 * d, most);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int row = g + 8 * i, seen = min(shared.known[row].cells - begin, most);
          if (seen <= 0) continue;
          const size_t slot = run.item(in, row) * all + chunk;
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
      if (const int row = threadIdx.x; row < run.rows && shared.known[row].cells > begin) {
        const size_t slot = run.item(in, row) * all + chunk;
        float total = 0.f, top_of_all = -INFINITY;
#pragma unroll 1
        for (int w = 0; w * QUARTER < most; ++w) {
          top_of_all = fmaxf(top_of_all, shared.highest[w][row]);
          total += shared.totals[w][row];
        }
        to.highest[slot] = top_of_all;
        to.totals[slot] = total;
      }
      __syncthreads();
      turns.load_values(turn + 1, values);
    }
  }
}

#define KERNEL(head_dim_)                                            \
  extern "C" __global__ void __launch_bounds__(THREADS, FEW_AT_ONCE) \
      attention_tensor_few_##head_dim_(INPUTS) {                     \
    DYNAMIC_SHARED(uint8_t, memory);                                 \
    __shared__ Shared shared;                                        \
    wait_for_previous();                                             \
    few<head_dim_>(GIVEN, memory, shared);                           \
  }

KERNEL(64)
KERNEL(128)
