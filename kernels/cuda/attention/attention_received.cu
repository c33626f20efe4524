// The attention that cells receive, in two launches that make scores alike, by tiles and chunks as
// attention_tile.cuh has them, without its values.
//
// The first finds of each token and head the highest score and the sum of weights below it. In the
// second a block has a chunk's cells of a KV head, a cell a thread, to which token after token adds,
// and of each head after head: neither the grid nor how a prompt is cut changes a bit.
#include "attention_tile.cuh"

constexpr int ROWS = 16;
constexpr int LANES_CELLS = FORMAT::BYTES == 4 ? 1 : 2;  // a lane's
constexpr int STAGED = LANES_CELLS * WARP;

#define GIVEN_RECEIVED                                                                          \
  {                                                                                             \
    q, k, nullptr, lists, spans, nullptr, nullptr, nullptr, nullptr, static_cast<float>(scale), \
        static_cast<float>(softcap), scratch, out, tokens, heads, head_dim, capacity, kv_heads, \
  }

// A run's queries, of rows whose scores know no distance.
static __device__ __forceinline__ void bring_plain_rows(const Inputs& in, const Desk& desk,
                                                        const Run& run) {
  bring_queries(in, desk, run);
  for (int row = threadIdx.x; row < padded(desk, run); row += THREADS) {
    const bool some = row < run.rows;
    desk.row[row].slope = 0.f;
    desk.row[row].position = 0;
    desk.row[row].highest = -INFINITY;
    desk.row[row].total = 0.f;
    if (some && in.out) {  // they are known
      desk.row[row].highest = in.scratch[2 * run.item(in, row)];
      desk.row[row].total = in.scratch[2 * run.item(in, row) + 1];
    }
  }
}

// Scores of a chunk's cells to desk.weights, and how many each row sees.
static __device__ __forceinline__ void score_chunk(const Inputs& in, const Desk& desk,
                                                   const Run& run, int kv_head, int chunk) {
  const int begin = chunk * CHUNK, most = min(run.most - begin, CHUNK);
  const int bytes = head_bytes<FORMAT>(in.head_dim);
  const size_t row_bytes = static_cast<size_t>(bytes) * in.kv_heads;
  __syncthreads();
  for (int c = threadIdx.x; c < CHUNK; c += THREADS) {
    if (c < most) desk.cells[c] = run.list[begin + c];
    desk.places[c] = 0;
  }
  for (int row = threadIdx.x; row < padded(desk, run); row += THREADS) {
    const int cells = row < run.rows ? cells_of(in, run.token(row)) : 0;
    desk.row[row].seen = min(max(cells - begin, 0), CHUNK);
  }
  __syncthreads();
  for (int c = 0; c < most; c += STAGED) {
    const int count = min(STAGED, most - c);
    bring<FORMAT>(desk.stage, in.k + static_cast<size_t>(kv_head) * bytes, row_bytes,
                  desk.cells + c, count, in.head_dim);
    await_copies<0>();
    __syncthreads();
    scores<FORMAT, ROWS / WARPS, LANES_CELLS>(in, desk, run, c, count);
    __syncthreads();
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    received_totals(const float* __restrict__ q, const uint8_t* __restrict__ k,
                    const int* __restrict__ lists, const int* __restrict__ spans, double scale,
                    double softcap, float* __restrict__ scratch, int tokens, int heads,
                    int head_dim, int capacity, int kv_heads, int sequences) {
  DYNAMIC_SHARED(uint8_t, memory);
  float* const out = nullptr;
  const Inputs in = GIVEN_RECEIVED;
  const Tile tile(in, Tiling(heads / kv_heads, ROWS), blockIdx.y, gridDim.x - 1 - blockIdx.x);
  const Desk desk = desk_at<FORMAT>(memory, ROWS, head_dim, STAGED);
  for (int t = tile.first; t < tile.last;) {
    const Run run(in, tile, t);
    t = run.t1;
    bring_plain_rows(in, desk, run);
    for (int chunk = 0; chunk < chunks_of(run.most); ++chunk) {
      score_chunk(in, desk, run, tile.kv_head, chunk);
      weigh(desk, padded(desk, run));
    }
    __syncthreads();
    for (int row = threadIdx.x; row < run.rows; row += THREADS) {
      scratch[2 * run.item(in, row)] = desk.row[row].highest;
      scratch[2 * run.item(in, row) + 1] = desk.row[row].total;
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    attention_received(const float* __restrict__ q, const uint8_t* __restrict__ k,
                       const int* __restrict__ lists, const int* __restrict__ spans, double scale,
                       double softcap, float* __restrict__ scratch, float* __restrict__ out,
                       int tokens, int heads, int head_dim, int capacity, int kv_heads,
                       int sequences) {
  DYNAMIC_SHARED(uint8_t, memory);
  const Inputs in = GIVEN_RECEIVED;
  const Tiling tiling(heads / kv_heads, ROWS);
  const Desk desk = desk_at<FORMAT>(memory, ROWS, head_dim, STAGED);
  const int chunk = blockIdx.x, kv_head = blockIdx.y, c = threadIdx.x;
  for (int number = 0; number * tiling.height < tokens; ++number)
    for (int slice = 0; slice < tiling.slices; ++slice) {
      const Tile tile(in, tiling, kv_head * tiling.slices + slice, number);
      for (int t = tile.first; t < tile.last;) {
        const Run run(in, tile, t);
        t = run.t1;
        if (run.most <= chunk * CHUNK) continue;
        bring_plain_rows(in, desk, run);
        score_chunk(in, desk, run, kv_head, chunk);
        const int begin = spans[3 * run.t0 + 1] + chunk * CHUNK, sequence = spans[3 * run.t0];
        if (c >= min(run.most - chunk * CHUNK, CHUNK)) continue;
        float* const own =
            out + (static_cast<size_t>(sequence) * kv_heads + kv_head) * capacity + begin + c;
        float sum = *own;
        for (int row = 0; row < run.rows; ++row) {
          if (c >= desk.row[row].seen) continue;
          const float weight = expf(desk.weights[row * CHUNK + c] - finite(desk.row[row].highest));
          sum += weight / desk.row[row].total;
        }
        *own = sum;
      }
    }
}
