// Flash attention (Dao et al., arXiv 2205.14135) for up to FEW tokens: a block does one chunk of a
// tile and leaves partial results for attention_merge.cu.
#include "attention_tile.cuh"

constexpr int BUDGET = 34816;  // bytes: a chunk's keys in float16, of head_dim 128

extern "C" __global__ void __launch_bounds__(THREADS, 3) attention_few(INPUTS) {
  DYNAMIC_SHARED(uint8_t, memory);
  const Inputs in = GIVEN;
  const Tiling tiling(heads / kv_heads, EIGHT);
  const Tile tile(in, tiling, blockIdx.y, blockIdx.z);
  const int chunk = blockIdx.x;
  int rows = 1, staged = CHUNK;
  while (rows < min(tiling.height, tokens) * tiling.width) rows *= 2;
  while (staged * stride_of<FORMAT>(head_dim) > BUDGET) staged /= 2;
  const Desk desk = desk_at<FORMAT>(memory, rows, head_dim, staged);
  for (int t = tile.first; t < tile.last;) {
    const Run run(in, tile, t);
    t = run.t1;
    if (run.most <= chunk * CHUNK) continue;  // as in most blocks, of which all cells have some
    bring_rows(in, desk, run);
    attend_up_to<FORMAT, true, 1>(in, desk, run, tile.kv_head, chunk, chunk + 1);
  }
}
