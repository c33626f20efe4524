// attention_many.cu on tensor cores: a thread block processes all chunks of 64 rows, 16 per warp.
//
// Double buffering (cp.async): keys in two halves of a chunk's cells, then values in two halves of
// head_dim; each piece is prefetched while the one before is used.
#include "attention_tensor.cuh"

constexpr int HALF = CHUNK / 2;

struct Shared {
  int cells[2 * CHUNK], places[2 * CHUNK], spoilt[WIDEST / 2];
  Row known[WARPS * ROWS];
};

// Double-buffered pieces of a run's keys and values.
template <int HEAD_DIM>
struct Pieces {
  static constexpr int ROOM = CHUNK * (HEAD_DIM + 16);  // bytes

  const Inputs& in;
  const Run& run;
  uint8_t* stage;           // [2, ROOM]
  int *cells, *places;      // [2, CHUNK]: of a chunk and the next
  size_t row_bytes, column;
  int number = 0;           // of the piece in flight

  __device__ int most(int chunk) const { return min(max(run.most - chunk * CHUNK, 0), CHUNK); }

  __device__ void look_up_chunk(int chunk) const {
    const int at = chunk % 2 * CHUNK;
    load_cells(in, run, chunk * CHUNK, most(chunk), cells + at, places + at);
  }

  __device__ void fetch() const {
    const int chunk = number / 4, part = number % 2;
    const int* const own = cells + chunk % 2 * CHUNK;
    uint8_t* const to = stage + number % 2 * ROOM;
    if (run.most <= chunk * CHUNK) return;  // with `most(chunk) == 0` NVRTC 12.9 never returns
    if (number % 4 < 2)
      load_padded<BYTES<HEAD_DIM>>(to, in.k + column, row_bytes, own + part * HALF,
                                    min(max(most(chunk) - part * HALF, 0), HALF));
    else
      load_padded<HEAD_DIM>(to, in.v + column + part * HEAD_DIM, row_bytes, own, most(chunk));
  }

  // Waits for the piece in flight and starts loading the next one.
  __device__ uint8_t* next() {
    await_copies<0>();
    __syncthreads();
    uint8_t* const here = stage + number % 2 * ROOM;
    ++number;
    fetch();
    return here;
  }
};

// `memory`: pieces, then queries [2, WARPS * ROWS, STRIDE].
template <int HEAD_DIM>
static __device__ __forceinline__ void many(const Inputs& in, uint8_t* memory, Shared& shared) {
  constexpr int STEP = HEAD_DIM + 16;  // row stride in bytes of a half of values
  constexpr int SLICES = HEAD_DIM / 2 / SLICE;  // per half
  uint8_t* const queries = memory + 2 * Pieces<HEAD_DIM>::ROOM;
  // reversed: a prompt's last tiles see most cells and start first
  const Tile tile(in, Tiling(in.heads / in.kv_heads, WARPS * ROWS), blockIdx.y,
                  gridDim.x - 1 - blockIdx.x);
  const size_t row_bytes = static_cast<size_t>(BYTES<HEAD_DIM>) * in.kv_heads;
  const size_t column = static_cast<size_t>(tile.kv_head) * BYTES<HEAD_DIM>;
  const int first_row = threadIdx.x / WARP * ROWS, lane = threadIdx.x % WARP, g = lane / 4;
  for (int t = tile.first; t < tile.last;) {
    const Run run(in, tile, t);
    t = run.t1;
    __syncthreads();  // the previous run's shared memory is free
    load_rows<HEAD_DIM>(in, run, queries, shared.known, WARPS * ROWS);
    Pieces<HEAD_DIM> pieces = {in,       run,    memory, shared.cells, shared.places,
                               row_bytes, column};
    pieces.look_up_chunk(0);
    __syncthreads();
    pieces.fetch();
    const bool active = first_row < run.rows;
    float mean[2][SLICES][SLICE / TILE][4] = {}, total[2] = {}, highest[2] = {-INFINITY, -INFINITY};
    for (int chunk = 0; chunk < chunks_of(run.most); ++chunk) {
      const int begin = chunk * CHUNK, most = pieces.most(chunk);
      const int fewest = min(run.fewest(in, begin), most);
      const int seen[2] = {min(shared.known[first_row + g].cells - begin, most),
                           min(shared.known[first_row + g + 8].cells - begin, most)};
      // set in inactive warps too, or registers would stay live across chunks
      float score[4 * TILES][4] = {}, top[2] = {-INFINITY, -INFINITY}, chunk_total[2] = {};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint8_t* const keys = pieces.next();
        if (half == 0) pieces.look_up_chunk(chunk + 1);
        if (active)
          scores<HEAD_DIM, 2 * TILES>(
              score + half * 2 * TILES, in, shared.known + first_row,
              queries + first_row * STRIDE<HEAD_DIM>, WARPS * ROWS * STRIDE<HEAD_DIM>, keys,
              shared.places + chunk % 2 * CHUNK, begin, half * HALF, most - half * HALF);
      }
      uint32_t upper[STEPS][4] = {}, lower[STEPS][4] = {};
      Factors by[2] = {};
      if (active) {
#pragma unroll
        for (int j = 0; j < 4 * TILES; ++j)
#pragma unroll
          for (int e = 0; e < 4; ++e) top[e / 2] = fmaxf(top[e / 2], score[j][e]);
        top[0] = max_of_four(top[0]), top[1] = max_of_four(top[1]);
#pragma unroll
        for (int quarter = 0; quarter < 4; ++quarter) {
          float part[2];
          softmax_chunk(upper + quarter * 2, lower + quarter * 2, part, score + quarter * TILES, top);
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
        if (fewest < most) clean<HEAD_DIM / 2>(values, fewest, most, shared.spoilt);
#pragma unroll
        for (int slice = 0; slice < SLICES; ++slice) {
          if (!active) break;
          float sum[SLICE / TILE][4];
          weighted_sum<STEP>(sum, upper, lower, values + 2 * SLICE * slice, most);
#pragma unroll
          for (int n = 0; n < SLICE / TILE; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
              const int d = SLICE * slice + TILE * n + lane % 4 * 2 + e % 2;
              if (fewest < most && shared.spoilt[d] < seen[e / 2]) sum[n][e] = INFINITY - INFINITY;
              float& so_far = mean[half][slice][n][e];
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
      const bool some = shared.known[row].cells > 0;
      const float sink = in.sinks[run.head(row)];
      const float inverse = some ? WithSink(highest[i], total[i], sink, LARGE).inverse() : 0.f;
      float* const to = in.out + run.item(in, row) * HEAD_DIM + lane % 4 * 2;
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int slice = 0; slice < SLICES; ++slice)
#pragma unroll
          for (int n = 0; n < SLICE / TILE; ++n)
#pragma unroll
            for (int e = 0; e < 2; ++e)
              to[half * (HEAD_DIM / 2) + SLICE * slice + TILE * n + e] =
                  some ? mean[half][slice][n][2 * i + e] * inverse : 0.f;
    }
  }
}

#define KERNEL(head_dim_)                                             \
  extern "C" __global__ void __launch_bounds__(THREADS, MANY_AT_ONCE) \
      attention_tensor_many_##head_dim_(INPUTS) {                     \
    DYNAMIC_SHARED(uint8_t, memory);                                  \
    __shared__ Shared shared;                                         \
    many<head_dim_>(GIVEN, memory, shared);                           \
  }

KERNEL(64)
KERNEL(128)
