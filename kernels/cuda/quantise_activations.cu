// A thread for each four activations.
#include "quantise_activations.cuh"

extern "C" __global__ void quantise_activations(const float* __restrict__ x, int8_t* __restrict__ q,
                                                float* __restrict__ scale,
                                                int32_t* __restrict__ total, int tokens,
                                                int hidden) {
  const size_t first = own_four(), end = static_cast<size_t>(tokens) * hidden;
  const bool inside = first < end;
  round_four(inside ? load_four(x, first, end) : Four{}, first, inside, q, scale, total);
}
