// attention_many.cu on tensor cores: a block goes through all chunks of 64 rows, 16 a warp.
//
// Keys come in two halves of a chunk's cells, then values in two halves of head_dim: while one of
// these pieces is of use the next is on its way.
#include "attention_tensor.cuh"

constexpr int HALF = CHUNK / 2;
constexpr int SLICES = WIDEST / SLICE;

// Pieces of a run's cells, in two places by turns.
struct Pieces {
  const Inputs& in;
  const Run& run;
  uint8_t* stage;        // [2, room]
  int *cells, *places;   // [2, CHUNK]: of a chunk and the next
  size_t row_bytes, column;
  int room, number = 0;  // of the piece that is on its way

  __device__ int most(int chunk) const { return min(run.most - chunk * CHUNK, CHUNK); }

  __device__ void look_up_chunk(int chunk) const {
    const int at = chunk % 2 * CHUNK;
    look_up(in, run, chunk * CHUNK, most(chunk), cells + at, places + at);
  }

  __device__ void bring() const {
    const int chunk = number / 4, part = number % 2, bytes = head_bytes<f16>(in.head_dim);
    const int* const own = cells + chunk % 2 * CHUNK;
    uint8_t* const to = stage + number % 2 * room;
    if (run.most <= chunk * CHUNK) return;
    if (number % 4 < 2)
      bring_filled(to, bytes + 16, in.k + column, row_bytes, own + part * HALF,
                   min(max(most(chunk) - part * HALF, 0), HALF), bytes);
    else
      bring_filled(to, bytes / 2 + 16, in.v + column + part * bytes / 2, row_bytes, own,
                   most(chunk), bytes / 2);
  }

  // The piece that was on its way, when all have it; the next one sets out.
  __device__ uint8_t* next() {
    await_copies<0>();
    __syncthreads();
    uint8_t* const here = stage + number % 2 * room;
    ++number;
    bring();
    return here;
  }
};

extern "C" __global__ void __launch_bounds__(THREADS, 2) attention_tensor_many(INPUTS) {
  DYNAMIC_SHARED(uint8_t, memory);
  __shared__ __align__(16) int cells[2 * CHUNK], places[2 * CHUNK], spoilt[WIDEST / 2];
  __shared__ Row known[WARPS * ROWS];
  const Inputs in = GIVEN;
  const int stride = stride_of<f16>(head_dim), bytes = head_bytes<f16>(head_dim);
  const int half_stride = bytes / 2 + 16, room = CHUNK * half_stride;
  uint8_t* const queries = memory + 2 * room;
  // those of most cells come last in a prompt, and begin first
  const Tile tile(in, Tiling(heads / kv_heads, WARPS * ROWS), blockIdx.y,
                  gridDim.x - 1 - blockIdx.x);
  const size_t row_bytes = static_cast<size_t>(bytes) * kv_heads;
  const size_t column = static_cast<size_t>(tile.kv_head) * bytes;
  const int first_row = threadIdx.x / WARP * ROWS, lane = threadIdx.x % WARP, g = lane / 4;
  for (int t = tile.first; t < tile.last;) {
    const Run run(in, tile, t);
    t = run.t1;
    __syncthreads();  // all are done with the run before
    bring_rows(in, run, queries, known, WARPS * ROWS);
    Pieces pieces = {in, run, memory, cells, places, row_bytes, column, room};
    pieces.look_up_chunk(0);
    __syncthreads();
    pieces.bring();
    const bool active = first_row < run.rows;
    float mean[SLICES][SLICE / TILE][4] = {}, total[2] = {}, highest[2] = {-INFINITY, -INFINITY};
    for (int chunk = 0; chunk < chunks_of(run.most); ++chunk) {
      const int begin = chunk * CHUNK, most = pieces.most(chunk);
      const int fewest = min(run.fewest(in, begin), most);
      const int seen[2] = {min(known[first_row + g].cells - begin, most),
                           min(known[first_row + g + 8].cells - begin, most)};
      float score[4 * TILES][4], top[2] = {-INFINITY, -INFINITY}, chunk_total[2] = {};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint8_t* const keys = pieces.next();
        if (half == 0) pieces.look_up_chunk(chunk + 1);
        if (active)
          scores<2 * TILES>(score + half * 2 * TILES, in, known + first_row, queries + first_row * stride,
                            WARPS * ROWS * stride, keys, places + chunk % 2 * CHUNK, begin,
                            half * HALF, most - half * HALF);
      }
      uint32_t upper[STEPS][4], lower[STEPS][4];
      Factors by[2];
      if (active) {
#pragma unroll
        for (int j = 0; j < 4 * TILES; ++j)
#pragma unroll
          for (int e = 0; e < 4; ++e) top[e / 2] = fmaxf(top[e / 2], score[j][e]);
        top[0] = max_of_four(top[0]), top[1] = max_of_four(top[1]);
#pragma unroll
        for (int quarter = 0; quarter < 4; ++quarter) {
          float part[2];
          weigh(upper + quarter * 2, lower + quarter * 2, part, score + quarter * TILES, top);
          if (quarter * QUARTER < most) chunk_total[0] += part[0], chunk_total[1] += part[1];
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float now = fmaxf(highest[i], top[i]);
          by[i] = factors(highest[i], top[i], now);
          if (seen[i] <= 0) continue;
          total[i] = merged(total[i], chunk_total[i], by[i]);
          highest[i] = now;
        }
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint8_t* const values = pieces.next();
        if (fewest < most) clean(values, half_stride, head_dim / 2, fewest, most, spoilt);
#pragma unroll
        for (int slice = 0; slice < SLICES / 2; ++slice) {
          if (!active || 2 * SLICE * slice >= head_dim) break;
          float sum[SLICE / TILE][4];
          weighted_sum(sum, upper, lower, values + 2 * SLICE * slice, half_stride, most);
#pragma unroll
          for (int n = 0; n < SLICE / TILE; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
              const int d = SLICE * slice + TILE * n + lane % 4 * 2 + e % 2;
              if (fewest < most && spoilt[d] < seen[e / 2]) sum[n][e] = INFINITY - INFINITY;
              float& so_far = mean[half * SLICES / 2 + slice][n][e];
              if (seen[e / 2] > 0) so_far = merged(so_far, sum[n][e], by[e / 2]);
            }
        }
      }
    }
    if (!active) continue;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = first_row + g + 8 * i;
      if (row >= run.rows) continue;
      const bool some = known[row].cells > 0;
      const float inverse = some ? 1.f / total[i] : 0.f;
      float* const to = out + run.item(in, row) * head_dim + lane % 4 * 2;
#pragma unroll
      for (int s = 0; s < SLICES; ++s) {
        const int slice = s % (SLICES / 2) * SLICE;
        if (2 * slice >= head_dim) continue;
#pragma unroll
        for (int n = 0; n < SLICE / TILE; ++n)
#pragma unroll
          for (int e = 0; e < 2; ++e)
            to[s / (SLICES / 2) * (head_dim / 2) + slice + TILE * n + e] =
                some ? mean[s][n][2 * i + e] * inverse : 0.f;
      }
    }
  }
}
