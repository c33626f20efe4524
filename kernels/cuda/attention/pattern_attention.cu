// Sparse prefill attention: blocks of queries see selected cells. A thread block processes a tile
// of a head's neighbouring tokens and gathers the cells they see into full chunks, so if all are
// seen a row has the arithmetic, and the bits, of attention_many.cu.
#include "attention_weights.cuh"

constexpr int QUERIES = 64;  // per block, all of which see the same cells

// Slots of selected cells, in shared memory.
struct Seen {
  int slots[2 * CHUNK];
  int counts[WARPS];
};

// Stream compaction by ballots: appends selected slots from j on to the `filled` ones, THREADS at a
// time, until there are CHUNK or the list ends.
static __device__ __forceinline__ void gather(Seen& seen, const uint8_t* __restrict__ sees,
                                              int end, int& j, int& filled) {
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  for (; filled < CHUNK && j < end; j += THREADS) {
    const int slot = j + threadIdx.x;
    const bool takes = slot < end && sees[slot];
    const uint32_t taken = __ballot_sync(ALL, takes);
    if (lane == 0) seen.counts[warp] = __popc(taken);
    __syncthreads();
    int place = filled + __popc(taken & ((1u << lane) - 1));
    for (int w = 0; w < WARPS; ++w) {
      if (w < warp) place += seen.counts[w];
      filled += seen.counts[w];
    }
    if (takes) seen.slots[place] = slot;
    __syncthreads();
  }
}

// End of the tokens from t on that are in the same block of queries.
static __device__ __forceinline__ int end_of_queries(const int* spans, int t, int last) {
  const int block = (spans[3 * t + 2] - 1) / QUERIES;
  int end = t + 1;
  while (end < last && spans[3 * end + 2] > 0 && spans[3 * end] == spans[3 * t] &&
         (spans[3 * end + 2] - 1) / QUERIES == block)
    ++end;
  return end;
}

static __device__ __forceinline__ void attend_to(const Inputs& in, const Workspace& workspace,
                                                 Seen& seen, const Run& run, int kv_head,
                                                 const uint8_t* __restrict__ sees) {
  constexpr int SUMS = 8, DIMS = 4;  // register tile: rows, elements
  const int pieces = in.head_dim / DIMS;
  const int first = static_cast<int>(threadIdx.x) / pieces * SUMS, d = threadIdx.x % pieces * DIMS;
  float means[SUMS][DIMS] = {};
  int filled = 0, j = 0;
  load_plain_rows(in, workspace, run);
  for (gather(seen, sees, run.most, j, filled); filled; gather(seen, sees, run.most, j, filled)) {
    const int most = min(filled, CHUNK), c = threadIdx.x;
    __syncthreads();
    if (c < most) workspace.cells[c] = run.list[seen.slots[c]];
    workspace.places[c] = 0;
    for (int row = threadIdx.x; row < padded(workspace, run); row += THREADS) {
      int own = row < run.rows ? most : 0;
      while (own > 0 && seen.slots[own - 1] >= cells_of(in, run.token(row))) --own;
      workspace.row[row].seen = own;
    }
    __syncthreads();
    int fewest = most;
    for (int row = 0; row < run.rows; ++row) fewest = min(fewest, workspace.row[row].seen);
    float sums[SUMS][DIMS] = {};
    sum_chunk<FORMAT, ROWS / WARPS, LANES_CELLS>(sums, in, workspace, run, kv_head, first, d, most,
                                                 fewest);
#pragma unroll
    for (int i = 0; i < SUMS; ++i) {
      if (first + i >= run.rows || workspace.row[first + i].seen == 0) continue;
      const Factors by = workspace.row[first + i].by;
#pragma unroll
      for (int e = 0; e < DIMS; ++e) means[i][e] = merged(means[i][e], sums[i][e], by);
    }
    const int later = c < filled - most ? seen.slots[most + c] : 0;
    __syncthreads();
    filled -= most;
    if (c < filled) seen.slots[c] = later;
    __syncthreads();
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < SUMS; ++i) {
    const int row = first + i;
    if (row >= run.rows) continue;
    const bool some = workspace.row[row].total != 0.f;
    const float inverse = some ? WithSink(0.f, workspace.row[row].total, -INFINITY).inverse() : 0.f;
#pragma unroll
    for (int e = 0; e < DIMS; ++e)
      in.out[run.item(in, row) * in.head_dim + d + e] = some ? means[i][e] * inverse : 0.f;
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    pattern_attention(const float* __restrict__ q, const uint8_t* __restrict__ k,
                      const uint8_t* __restrict__ v, const int* __restrict__ lists,
                      const int* __restrict__ spans, const uint8_t* __restrict__ sees,
                      double scale, double softcap, float* __restrict__ out, int tokens, int heads,
                      int head_dim, int capacity, int kv_heads, int sequences, int rows) {
  DYNAMIC_SHARED(uint8_t, memory);
  __shared__ Seen seen;
  float* const scratch = nullptr;
  Inputs in = GIVEN_PLAIN;
  in.v = v;
  const Workspace workspace = workspace_at<FORMAT>(memory, ROWS, head_dim, STAGED);
  // reversed: a prompt's last tiles see most cells and start first
  const int h = blockIdx.y, first = (gridDim.x - 1 - blockIdx.x) * ROWS;
  const int last = min(first + ROWS, tokens);
  for (int t = first; t < last;) {
    const int end = spans[3 * t + 2];
    if (end <= 0) {
      ++t;
      continue;
    }
    const Run run(in, t, end_of_queries(spans, t, last), h);
    const size_t row = static_cast<size_t>(h) * rows + (end - 1) / QUERIES % rows;
    attend_to(in, workspace, seen, run, h / (heads / kv_heads), sees + row * capacity);
    t = run.t1;
  }
}
