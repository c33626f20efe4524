// What chunks of a token and head gave, merged in their order.
#pragma once
#include "attention.cuh"

// A block of threads for a token and head, with so many chunks of the `most` that there is room for:
// a warp reads the highest scores of 32 chunks, finds by how much each merge shrinks what it merges,
// and goes through the sums. Lanes come to put(inside, at, element) with elements side by side, those
// beyond head_dim not inside. A weight of 1 counts as `one` in what is merged.
template <class Put>
static __device__ __forceinline__ void merge(int chunks, int most, const float* __restrict__ sinks,
                                             const float* __restrict__ scratch, float one,
                                             int heads, int head_dim, Put put) {
  const int item = blockIdx.x, lane = threadIdx.x % WARP;
  const Partials from(const_cast<float*>(scratch), gridDim.x, most, head_dim);
  const size_t slot = static_cast<size_t>(item) * most;
  for (int begin = threadIdx.x - lane; begin < head_dim; begin += THREADS) {
    const int d = min(begin + lane, head_dim - 1);
    const float* sums = from.sums + slot * head_dim + d;
    float mean = 0.f, total = 0.f, highest = -INFINITY;
    for (int chunk = 0; chunk < chunks; chunk += WARP) {
      const bool some = chunk + lane < chunks;
      const float own = some ? from.highest[slot + chunk + lane] : -INFINITY;
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
    const float inverse = Ending(highest, total, sinks[item % heads], one).inverse();
    put(begin + lane < head_dim, static_cast<size_t>(item) * head_dim + d,
        chunks > 0 ? mean * inverse : 0.f);
  }
}
