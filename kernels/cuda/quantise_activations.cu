// Quantizes activations to int8, with one scale per 32 elements: four elements per thread.
#include "quantise_activations.cuh"

extern "C" __global__ void quantise_activations(const float* __restrict__ x, int8_t* __restrict__ q,
                                                float* __restrict__ scale,
                                                int32_t* __restrict__ total, int tokens,
                                                int hidden) {
  wait_for_previous();
  const size_t first = own_four(), end = static_cast<size_t>(tokens) * hidden;
  const bool inside = first < end;
  const Four four = inside ? load_four(x, first, end) : Four{};
  round_four<32>(four, first, inside, nullptr, q, scale, total);
}

// One scale per 256 elements, which a warp holds: each lane has four elements of either half.
extern "C" __global__ void quantise_activations_256(const float* __restrict__ x,
                                                    int8_t* __restrict__ q,
                                                    float* __restrict__ scale,
                                                    int32_t* __restrict__ total, int tokens,
                                                    int hidden) {
  wait_for_previous();
  const size_t warp = own_four() / (4 * WARP), end = static_cast<size_t>(tokens) * hidden;
  const size_t first = 2 * 4 * WARP * warp + 4 * (threadIdx.x % WARP), second = first + 4 * WARP;
  const bool inside = first < end;
  const Four low = inside ? load_four(x, first, end) : Four{};
  const Four high = inside ? load_four(x, second, end) : Four{};
  int bits = max(largest_bits(low), largest_bits(high));
  for (int m = WARP / 2; m; m /= 2) bits = max(bits, __shfl_xor_sync(ALL, bits, m));
  const Rounding rounding(bits);
  put_four(low, first, inside, rounding, q, scale, total);
  put_four(high, second, inside, rounding, q, scale, total);
}
