// act(gate) * up: each thread computes four consecutive elements.
#include "elementwise.cuh"
#include "gated_activations.cuh"

#define GATED(name, Of)                                                                    \
  extern "C" __global__ void name(const float* __restrict__ gate,                          \
                                  const float* __restrict__ up, float* __restrict__ out, \
                                  int tokens, int width) {                                \
    map(gate, up, out, static_cast<size_t>(tokens) * width, Of());                        \
  }
EACH_GATED(GATED)

extern "C" __global__ void swiglu_oai(const float* __restrict__ gate,
                                      const float* __restrict__ up, double alpha, double limit,
                                      float* __restrict__ out, int tokens, int width) {
  map(gate, up, out, static_cast<size_t>(tokens) * width,
      SwigluOai{static_cast<float>(alpha), static_cast<float>(limit)});
}
