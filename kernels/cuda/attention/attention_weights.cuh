// Softmax weights of cells without values, in two passes: first each row's maximum score and sum of
// weights, then the weights themselves. Scores have no ALiBi bias.
#pragma once
#include "attention_tile.cuh"

constexpr int LANES_CELLS = FORMAT::BYTES == 4 ? 1 : 2;  // per lane
constexpr int STAGED = LANES_CELLS * WARP;

#define GIVEN_PLAIN                                                                             \
  {                                                                                             \
    q, k, nullptr, lists, spans, nullptr, nullptr, nullptr, nullptr, static_cast<float>(scale), \
        static_cast<float>(softcap), scratch, out, tokens, heads, head_dim, capacity, kv_heads, \
  }

// Loads a run's queries, for scores without ALiBi bias.
static __device__ __forceinline__ void load_plain_rows(const Inputs& in,
                                                        const Workspace& workspace,
                                                        const Run& run) {
  load_queries(in, workspace, run);
  for (int row = threadIdx.x; row < padded(workspace, run); row += THREADS) {
    const bool some = row < run.rows;
    workspace.row[row].slope = 0.f;
    workspace.row[row].position = 0;
    workspace.row[row].highest = -INFINITY;
    workspace.row[row].total = 0.f;
    if (some && in.out && in.scratch) {  // in the second pass
      workspace.row[row].highest = in.scratch[2 * run.item(in, row)];
      workspace.row[row].total = in.scratch[2 * run.item(in, row) + 1];
    }
  }
}

// Scores of `most` cells from `begin` on into workspace.weights; sets how many each row sees.
static __device__ __forceinline__ void score_cells(const Inputs& in, const Workspace& workspace,
                                                   const Run& run, int kv_head, int begin,
                                                   int most) {
  const int bytes = head_bytes<FORMAT>(in.head_dim);
  const size_t row_bytes = static_cast<size_t>(bytes) * in.kv_heads;
  __syncthreads();
  for (int c = threadIdx.x; c < CHUNK; c += THREADS) {
    if (c < most) workspace.cells[c] = run.list[begin + c];
    workspace.places[c] = 0;
  }
  for (int row = threadIdx.x; row < padded(workspace, run); row += THREADS) {
    const int cells = row < run.rows ? cells_of(in, run.token(row)) : 0;
    workspace.row[row].seen = min(max(cells - begin, 0), CHUNK);
  }
  __syncthreads();
  score_rows<FORMAT, ROWS / WARPS, LANES_CELLS>(
      in, workspace, run, in.k + static_cast<size_t>(kv_head) * bytes, row_bytes, most);
}

static __device__ __forceinline__ void score_chunk(const Inputs& in, const Workspace& workspace,
                                                   const Run& run, int kv_head, int chunk) {
  score_cells(in, workspace, run, kv_head, chunk * CHUNK, min(run.most - chunk * CHUNK, CHUNK));
}

// Stores each row's maximum score and sum of weights in scratch [tokens, heads, 2].
static __device__ __forceinline__ void sum_weights(const Inputs& in, const Workspace& workspace,
                                                   const Tile& tile) {
  for (int t = tile.first; t < tile.last;) {
    const Run run(in, tile, t);
    t = run.t1;
    load_plain_rows(in, workspace, run);
    for (int chunk = 0; chunk < chunks_of(run.most); ++chunk) {
      score_chunk(in, workspace, run, tile.kv_head, chunk);
      softmax_chunk(workspace, padded(workspace, run));
    }
    __syncthreads();
    for (int row = threadIdx.x; row < run.rows; row += THREADS) {
      in.scratch[2 * run.item(in, row)] = workspace.row[row].highest;
      in.scratch[2 * run.item(in, row) + 1] = workspace.row[row].total;
    }
  }
}

// Softmax weight of a row's cell, from its score in workspace.weights.
static __device__ __forceinline__ float weight_of(const Workspace& workspace, int row, int cell) {
  const Row& own = workspace.row[row];
  return expf(workspace.weights[row * CHUNK + cell] - finite(own.highest)) / own.total;
}
