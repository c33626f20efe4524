// Merges the partial results of a token and head's chunks, in chunk order.
#pragma once
#include "attention.cuh"

// A chunk's rescaling factors and sum of weights.
struct Step {
  Factors by;
  float total;
};

// Steps per warp, in shared memory.
using Steps = Step[THREADS / WARP][WARP];

// One thread block per token and head, one lane per element, for `chunks` chunks of at most `most`.
// Per 32 chunks a warp loads their sums (32 loads in flight) and prefetches the next 32 maximum
// scores; a prefix maximum (warp shuffles) gives the rescaling factors; then lanes merge sums in
// order. Padding chunks add -0, which changes no bits. All lanes call put(inside, at, element) with
// adjacent elements, `inside` false past head_dim. A weight of 1 is `one` in partial results.
template <class Put>
static __device__ __forceinline__ void merge(int chunks, int most, const float* __restrict__ sinks,
                                             const float* __restrict__ scratch, float one,
                                             int heads, int head_dim, Steps& every_steps, Put put) {
  const int item = blockIdx.x, lane = threadIdx.x % WARP;
  const Partials from(const_cast<float*>(scratch), gridDim.x, most, head_dim);
  const size_t slot = static_cast<size_t>(item) * most;
  const float sink = sinks[item % heads];  // loaded with the partial results
  Step* const steps = every_steps[threadIdx.x / WARP];
  for (int begin = threadIdx.x - lane; begin < head_dim; begin += THREADS) {
    const int d = min(begin + lane, head_dim - 1);
    const float* sums = from.sums + slot * head_dim + d;
    float mean = 0.f, total = 0.f, highest = -INFINITY;
    float next = lane < chunks ? from.highest[slot + lane] : -INFINITY;
    float next_total = lane < chunks ? from.totals[slot + lane] : 0.f;
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; chunk += WARP) {
      float own_sums[WARP];
#pragma unroll
      for (int j = 0; j < WARP; ++j, sums += head_dim)
        own_sums[j] = chunk + j < chunks ? *sums : -0.f;
      const float own = next, own_total = next_total;
      const int later = chunk + WARP + lane;
      next = later < chunks ? from.highest[slot + later] : -INFINITY;
      next_total = later < chunks ? from.totals[slot + later] : 0.f;
      float now = fmaxf(own, highest);
#pragma unroll
      for (int by = 1; by < WARP; by *= 2) now = fmaxf(now, __shfl_up_sync(ALL, now, by));
      float before = __shfl_up_sync(ALL, now, 1);
      if (lane == 0) before = highest;
      Factors by = factors(before, own, now);
      if (chunk + lane >= chunks) by = {1.f, 0.f};
      steps[lane] = {by, own_total};
      __syncwarp();
#pragma unroll
      for (int j = 0; j < WARP; ++j) {
        const Step step = steps[j];
        mean = merged(mean, own_sums[j], step.by);
        total = merged(total, step.total, step.by);
      }
      highest = __shfl_sync(ALL, now, WARP - 1);
      __syncwarp();
    }
    const float inverse = WithSink(highest, total, sink, one).inverse();
    put(begin + lane < head_dim, static_cast<size_t>(item) * head_dim + d,
        chunks > 0 ? mean * inverse : 0.f);
  }
}
