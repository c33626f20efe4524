// Flash attention (Dao et al., arXiv 2205.14135) for up to FEW tokens; attention_merge.cu merges what
// the chunks give.
#include "attention_tile.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 3) attention_few(INPUTS) {
  DYNAMIC_SHARED(uint8_t, memory);
  attend_few<FORMAT>(Cells<FORMAT>(), GIVEN, memory);
}
