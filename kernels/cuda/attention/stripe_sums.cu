// Sums of the last tokens' weights by cell (vertical) and by distance (slash), in two launches:
// softmax statistics, then sums. A thread block has some cells or distances of a head, one per
// thread, and adds tokens in order.
#include "attention_weights.cuh"

// The first of the `last` latest tokens that have cells, or `tokens` if there is none.
static __device__ __forceinline__ int first_observer(const int* spans, int tokens, int64_t last) {
  int found = tokens;
  for (int t = tokens - 1; t >= 0 && last > 0; --t)
    if (spans[3 * t + 2] > 0) found = t, --last;
  return found;
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    stripe_totals(const float* __restrict__ q, const uint8_t* __restrict__ k,
                  const int* __restrict__ lists, const int* __restrict__ spans, double scale,
                  double softcap, int64_t last, float* __restrict__ scratch, int tokens, int heads,
                  int head_dim, int capacity, int kv_heads, int sequences) {
  DYNAMIC_SHARED(uint8_t, memory);
  float* const out = nullptr;
  const Inputs in = GIVEN_PLAIN;
  Tile tile(in, Tiling(heads / kv_heads, ROWS), blockIdx.y, gridDim.x - 1 - blockIdx.x);
  tile.first = max(tile.first, first_observer(spans, tokens, last));
  const Workspace workspace = workspace_at<FORMAT>(memory, ROWS, head_dim, STAGED);
  sum_weights(in, workspace, tile);
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    stripe_sums(const float* __restrict__ q, const uint8_t* __restrict__ k,
                const int* __restrict__ lists, const int* __restrict__ spans, double scale,
                double softcap, int64_t last, float* __restrict__ scratch,
                float* __restrict__ out, int tokens, int heads, int head_dim, int capacity,
                int kv_heads, int sequences) {
  DYNAMIC_SHARED(uint8_t, memory);
  const Inputs in = GIVEN_PLAIN;
  const Workspace workspace = workspace_at<FORMAT>(memory, ROWS, head_dim, STAGED);
  const int h = blockIdx.y, c = threadIdx.x, begin = blockIdx.x * STRIPES;
  const bool slanted = blockIdx.z;  // distances instead of cells
  const int first = first_observer(spans, tokens, last);
  if (first == tokens) return;
  float sum = 0.f;
  for (int t = first; t < tokens;) {
    const int end = spans[3 * t + 2];
    int t1 = t + 1, least = end, most = end;
    while (end > 0 && t1 < tokens && t1 < t + ROWS && spans[3 * t1 + 2] > 0) {
      const int low = min(least, spans[3 * t1 + 2]), high = max(most, spans[3 * t1 + 2]);
      if (high - low >= ROWS) break;
      least = low, most = high, ++t1;
    }
    const int from = t;
    t = t1;
    const int low = slanted ? max(least - begin - STRIPES, 0) : begin;
    const int high = slanted ? most - begin : min(begin + STRIPES, most);
    if (end <= 0 || high <= low) continue;
    const Run run(in, from, t1, h);
    load_plain_rows(in, workspace, run);
    score_cells(in, workspace, run, h / (heads / kv_heads), low, high - low);
    for (int row = 0; row < run.rows; ++row) {
      const int own = spans[3 * run.token(row) + 2];
      const int cell = slanted ? own - 1 - begin - c : begin + c;
      if (c < STRIPES && cell >= 0 && cell < own) sum += weight_of(workspace, row, cell - low);
    }
  }
  if (c < STRIPES && begin + c < capacity)
    out[(2 * static_cast<size_t>(h) + slanted) * capacity + begin + c] = sum;
}
