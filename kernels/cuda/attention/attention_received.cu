// Sums of the weights that cells receive, in two launches with the same scores: softmax statistics
// of rows; then a thread block per chunk of a KV head's cells, one per thread, which adds over
// tokens, then heads, in order, so bits do not depend on grid or prompt chunking.
#include "attention_weights.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    received_totals(const float* __restrict__ q, const uint8_t* __restrict__ k,
                    const int* __restrict__ lists, const int* __restrict__ spans, double scale,
                    double softcap, float* __restrict__ scratch, int tokens, int heads,
                    int head_dim, int capacity, int kv_heads, int sequences) {
  DYNAMIC_SHARED(uint8_t, memory);
  float* const out = nullptr;
  const Inputs in = GIVEN_PLAIN;
  const Tile tile(in, Tiling(heads / kv_heads, ROWS), blockIdx.y, gridDim.x - 1 - blockIdx.x);
  const Workspace workspace = workspace_at<FORMAT>(memory, ROWS, head_dim, STAGED);
  sum_weights(in, workspace, tile);
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    attention_received(const float* __restrict__ q, const uint8_t* __restrict__ k,
                       const int* __restrict__ lists, const int* __restrict__ spans, double scale,
                       double softcap, float* __restrict__ scratch, float* __restrict__ out,
                       int tokens, int heads, int head_dim, int capacity, int kv_heads,
                       int sequences) {
  DYNAMIC_SHARED(uint8_t, memory);
  const Inputs in = GIVEN_PLAIN;
  const Tiling tiling(heads / kv_heads, ROWS);
  const Workspace workspace = workspace_at<FORMAT>(memory, ROWS, head_dim, STAGED);
  const int chunk = blockIdx.x, kv_head = blockIdx.y, c = threadIdx.x;
  for (int number = 0; number * tiling.height < tokens; ++number)
    for (int slice = 0; slice < tiling.slices; ++slice) {
      const Tile tile(in, tiling, kv_head * tiling.slices + slice, number);
      for (int t = tile.first; t < tile.last;) {
        const Run run(in, tile, t);
        t = run.t1;
        if (run.most <= chunk * CHUNK) continue;
        load_plain_rows(in, workspace, run);
        score_chunk(in, workspace, run, kv_head, chunk);
        const int begin = spans[3 * run.t0 + 1] + chunk * CHUNK, sequence = spans[3 * run.t0];
        if (c >= min(run.most - chunk * CHUNK, CHUNK)) continue;
        float* const own =
            out + (static_cast<size_t>(sequence) * kv_heads + kv_head) * capacity + begin + c;
        float sum = *own;
        for (int row = 0; row < run.rows; ++row) {
          if (c >= workspace.row[row].seen) continue;
          sum += weight_of(workspace, row, c);
        }
        *own = sum;
      }
    }
}
