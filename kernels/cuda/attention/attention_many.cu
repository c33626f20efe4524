// FlashAttention (Dao et al., arXiv 2205.14135) for many tokens: one thread block per tile.
#include "attention_tile.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, MANY_AT_ONCE) attention_many(INPUTS) {
  DYNAMIC_SHARED(uint8_t, memory);
  attend_many<FORMAT>(Cells<FORMAT>(), GIVEN, memory);
}
