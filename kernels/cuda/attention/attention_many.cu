// Flash attention (Dao et al., arXiv 2205.14135) for many tokens: a block goes through all chunks
// of a tile, of 32 rows, or 16 where head_dim is above WIDE. A warp scores a quarter of them.
#include "attention_tile.cuh"

constexpr int WIDE = 128;
constexpr int CELLS = FORMAT::BYTES == 4 ? 1 : 2;  // a lane

extern "C" __global__ void __launch_bounds__(THREADS, 2) attention_many(INPUTS) {
  DYNAMIC_SHARED(uint8_t, memory);
  const Inputs in = GIVEN;
  const int rows = head_dim > WIDE ? 16 : 32;
  // those of most cells come last in a prompt, and begin first
  const Tile tile(in, Tiling(heads / kv_heads, rows), blockIdx.y, gridDim.x - 1 - blockIdx.x);
  const Desk desk = desk_at<FORMAT>(memory, rows, head_dim, CELLS * WARP);
  for (int t = tile.first; t < tile.last;) {
    const Run run(in, tile, t);
    bring_rows(in, desk, run);
    const int chunks = chunks_of(run.most);
    if (run.rows <= EIGHT)
      attend_up_to<FORMAT, false, 2>(in, desk, run, tile.kv_head, 0, chunks);
    else if (head_dim > WIDE)
      attend<FORMAT, false, 4, CELLS, 8, 4>(in, desk, run, tile.kv_head, 0, chunks);
    else
      attend<FORMAT, false, 8, CELLS, 8, 4>(in, desk, run, tile.kv_head, 0, chunks);
    t = run.t1;
  }
}
