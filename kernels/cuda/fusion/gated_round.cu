// Gated activation act(gate) * up and its int8 quantisation, fused: a thread per four elements.
#include "gated_activations.cuh"
#include "quantise_activations.cuh"

template <int TOGETHER, class Of>
static __device__ __forceinline__ void map_and_round(const float* gate, const float* up, float* out,
                                                     int8_t* q, float* scale, int32_t* total,
                                                     size_t end, int* largest, Of of) {
  wait_for_previous();
  const size_t first = own_four();
  const bool inside = first < end;
  Four four{};
  if (inside) {
    four = load_four(gate, first, end);
    const Four other = load_four(up, first, end);
    for (int k = 0; k < 4; ++k) four.at[k] = of(four.at[k], other.at[k]);
    store_four(out, first, end, four);
  }
  round_four<TOGETHER>(four, first, inside, largest, q, scale, total);
}

#define GATED_OF(TOGETHER, name, Of)                                                         \
  extern "C" __global__ void name(                                                           \
      const float* __restrict__ gate, const float* __restrict__ up, float* __restrict__ out, \
      int8_t* __restrict__ q, float* __restrict__ scale, int32_t* __restrict__ total,        \
      int tokens, int hidden) {                                                              \
    __shared__ int largest[WARP];                                                            \
    map_and_round<TOGETHER>(gate, up, out, q, scale, total,                                  \
                            static_cast<size_t>(tokens) * hidden, largest, Of());            \
  }
#define GATED(name, Of)           \
  GATED_OF(32, name##_round, Of)  \
  GATED_OF(256, name##_round_256, Of)
EACH_GATED(GATED)

#define SWIGLU_OAI(TOGETHER, name)                                                            \
  extern "C" __global__ void name(                                                            \
      const float* __restrict__ gate, const float* __restrict__ up, double alpha,             \
      double limit, float* __restrict__ out, int8_t* __restrict__ q,                          \
      float* __restrict__ scale, int32_t* __restrict__ total, int tokens, int hidden) {       \
    __shared__ int largest[WARP];                                                             \
    map_and_round<TOGETHER>(gate, up, out, q, scale, total,                                   \
                            static_cast<size_t>(tokens) * hidden, largest,                    \
                            SwigluOai{static_cast<float>(alpha), static_cast<float>(limit)}); \
  }
SWIGLU_OAI(32, swiglu_oai_round)
SWIGLU_OAI(256, swiglu_oai_round_256)
