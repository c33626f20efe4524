// Flash attention (Dao et al., arXiv 2205.14135) in float32, for heads of whole 16 elements (blocks
// of 32) up to 256.
//
// - attention_few: up to FEW tokens; a block does one chunk of a tile and leaves partial results.
// - attention_merge: merges these, a block for each token and head.
// - attention_many: a block goes through all chunks of a tile.
#include "attention_tile.cuh"

constexpr int FEW_ROWS = 8, FEW_STAGED = 128, MANY_STAGED = 64;
constexpr int FEW_BUDGET = 34816;  // bytes of staged cells: a chunk in float16, head_dim 128
constexpr int WIDE = 128;          // a head_dim beyond it has tiles of half as many rows

// Up to N rows a thread, of those up to 8 that a tile has.
template <class Cache, bool FEW_TOKENS, int N>
static __device__ __forceinline__ void attend_up_to(const Inputs& in, const Desk& desk,
                                                    const Run& run, int kv_head, int first,
                                                    int last) {
  const int a_thread = THREADS / (in.head_dim / 2) * N;
  if constexpr (N < FEW_ROWS)
    if (THREADS / desk.staged * N < run.rows || a_thread < run.rows)
      return attend_up_to<Cache, FEW_TOKENS, 2 * N>(in, desk, run, kv_head, first, last);
  attend<Cache, FEW_TOKENS, N, 1, N, 2>(in, desk, run, kv_head, first, last);
}

template <class Cache>
static __device__ __forceinline__ void few(const Inputs& in, uint8_t* memory) {
  const int group = in.heads / in.kv_heads;
  const Tiling tiling(group, FEW_ROWS);
  const int kv_head = blockIdx.y / tiling.slices, piece = blockIdx.y % tiling.slices;
  const int chunk = blockIdx.x, h0 = kv_head * group + piece * tiling.width;
  const int width = min(tiling.width, (kv_head + 1) * group - h0);
  const int first = blockIdx.z * tiling.height, last = min(first + tiling.height, in.tokens);
  const int rows = min(tiling.height, in.tokens) * tiling.width;
  const Desk desk = desk_at<Cache>(memory, rows, in.head_dim, FEW_STAGED, FEW_BUDGET);
  for (int t = first; t < last;) {
    const Run run = bring_run(in, desk, t, last, h0, width);
    if (run.most > chunk * CHUNK)
      attend_up_to<Cache, true, 1>(in, desk, run, kv_head, chunk, chunk + 1);
    t = run.t1;
  }
}

// Tiles of ROWS rows; a warp has a quarter of these for scores.
template <class Cache, int ROWS, int VALUES>
static __device__ __forceinline__ void many(const Inputs& in, uint8_t* memory, int budget) {
  const int group = in.heads / in.kv_heads;
  const Tiling tiling(group, ROWS);
  const int kv_head = blockIdx.y / tiling.slices, piece = blockIdx.y % tiling.slices;
  const int h0 = kv_head * group + piece * tiling.width;
  const int width = min(tiling.width, (kv_head + 1) * group - h0);
  // those of most cells come last in a prompt, and begin first
  const int first = (gridDim.x - 1 - blockIdx.x) * tiling.height;
  const int last = min(first + tiling.height, in.tokens);
  const Desk desk = desk_at<Cache>(memory, ROWS, in.head_dim, MANY_STAGED, budget);
  for (int t = first; t < last;) {
    const Run run = bring_run(in, desk, t, last, h0, width);
    const int chunks = chunks_of(run.most);
    if (run.rows <= FEW_ROWS)
      attend_up_to<Cache, false, 1>(in, desk, run, kv_head, 0, chunks);
    else if (desk.staged == 2 * WARP)
      attend<Cache, false, ROWS / WARPS, 2, VALUES, 4>(in, desk, run, kv_head, 0, chunks);
    else
      attend<Cache, false, ROWS / WARPS, 1, VALUES, 4>(in, desk, run, kv_head, 0, chunks);
    t = run.t1;
  }
}

#define INPUTS                                                                                     \
  const float *__restrict__ q, const uint8_t *__restrict__ k, const uint8_t *__restrict__ v,       \
      const int *__restrict__ lists, const int *__restrict__ spans,                                \
      const int *__restrict__ positions, const int *__restrict__ cell_positions,                   \
      const float *__restrict__ slopes, double scale, double softcap, float *__restrict__ scratch, \
      float *__restrict__ out, int tokens, int heads, int head_dim, int capacity, int kv_heads,    \
      int sequences
#define GIVEN                                                                                   \
  {                                                                                             \
    q, k, v, lists, spans, positions, cell_positions, slopes, static_cast<float>(scale),        \
        static_cast<float>(softcap), scratch, out, tokens, heads, head_dim, capacity, kv_heads, \
  }

extern "C" __global__ void __launch_bounds__(THREADS) attention_few(INPUTS) {
  DYNAMIC_SHARED(uint8_t, memory);
  few<FORMAT>(GIVEN, memory);
}

extern "C" __global__ void __launch_bounds__(THREADS) attention_many(INPUTS) {
  DYNAMIC_SHARED(uint8_t, memory);
  if (head_dim <= 64)
    many<FORMAT, 32, 4>(GIVEN, memory, 30720);
  else if (head_dim <= WIDE)
    many<FORMAT, 32, 8>(GIVEN, memory, 30720);
  else
    many<FORMAT, 16, 8>(GIVEN, memory, 34816);
}

// What chunks of a token and head gave, merged in their order: a warp reads the highest scores of 32
// chunks, finds by how much each merge shrinks what it merges, and goes through the sums.
extern "C" __global__ void __launch_bounds__(THREADS)
    attention_merge(const int* __restrict__ spans, const float* __restrict__ scratch,
                    float* __restrict__ out, int tokens, int heads, int head_dim, int capacity) {
  const int item = blockIdx.x, t = item / heads, lane = threadIdx.x % WARP;
  const int chunks = chunks_of(spans[3 * t + 2] - spans[3 * t + 1]);
  const Partials from(const_cast<float*>(scratch), tokens, heads, head_dim, capacity);
  const size_t slot = static_cast<size_t>(item) * chunks_of(capacity);
  for (int begin = threadIdx.x - lane; begin < head_dim; begin += THREADS) {
    const int d = min(begin + lane, head_dim - 1);
    const float* sums = from.sums + slot * head_dim + d;
    float mean = 0.f, total = 0.f, highest = lowest();
    for (int chunk = 0; chunk < chunks; chunk += WARP) {
      const bool some = chunk + lane < chunks;
      const float own = some ? from.highest[slot + chunk + lane] : lowest();
      const float own_total = some ? from.totals[slot + chunk + lane] : 0.f;
      float now = fmaxf(own, highest);
#pragma unroll
      for (int by = 1; by < WARP; by *= 2) now = fmaxf(now, __shfl_up_sync(ALL, now, by));
      float before = __shfl_up_sync(ALL, now, 1);
      if (lane == 0) before = highest;
      const Factors by = factors(before, own, now);
      const int count = min(WARP, chunks - chunk);
#pragma unroll 4
      for (int j = 0; j < count; ++j, sums += head_dim) {
        const Factors of = {__shfl_sync(ALL, by.before, j), __shfl_sync(ALL, by.chunk, j)};
        mean = merged(mean, *sums, of);
        total = merged(total, __shfl_sync(ALL, own_total, j), of);
      }
      highest = __shfl_sync(ALL, now, WARP - 1);
    }
    if (begin + lane < head_dim)
      out[static_cast<size_t>(item) * head_dim + d] = chunks > 0 ? mean * (1.f / total) : 0.f;
  }
}
