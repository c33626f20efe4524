// act(gate) * up and the rounding of that, a thread for each four elements.
#include "gated_activations.cuh"
#include "quantise_activations.cuh"

template <class Of>
static __device__ __forceinline__ void map_and_round(const float* gate, const float* up, float* out,
                                                     int8_t* q, float* scale, int32_t* total,
                                                     size_t end, Of of) {
  const size_t first = own_four();
  const bool inside = first < end;
  Four four{};
  if (inside) {
    four = load_four(gate, first, end);
    const Four other = load_four(up, first, end);
    for (int k = 0; k < 4; ++k) four.at[k] = of(four.at[k], other.at[k]);
    store_four(out, first, end, four);
  }
  round_four(four, first, inside, q, scale, total);
}

#define GATED(name, Of)                                                                         \
  extern "C" __global__ void name##_round(                                                      \
      const float* __restrict__ gate, const float* __restrict__ up, float* __restrict__ out,    \
      int8_t* __restrict__ q, float* __restrict__ scale, int32_t* __restrict__ total,           \
      int tokens, int hidden) {                                                                 \
    map_and_round(gate, up, out, q, scale, total, static_cast<size_t>(tokens) * hidden, Of());  \
  }
EACH_GATED(GATED)

extern "C" __global__ void swiglu_oai_round(
    const float* __restrict__ gate, const float* __restrict__ up, double alpha, double limit,
    float* __restrict__ out, int8_t* __restrict__ q, float* __restrict__ scale,
    int32_t* __restrict__ total, int tokens, int hidden) {
  map_and_round(gate, up, out, q, scale, total, static_cast<size_t>(tokens) * hidden,
                SwigluOai{static_cast<float>(alpha), static_cast<float>(limit)});
}
