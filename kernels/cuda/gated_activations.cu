// act(gate) * up, a thread for each four elements.
#include "elementwise.cuh"

#include "activations.cuh"

template <class Activation>
struct Gated {
  __device__ float operator()(float gate, float up) const { return Activation()(gate) * up; }
};

struct Drelu {
  __device__ float operator()(float gate, float up) const { return Relu()(gate) * Relu()(up); }
};

#define GATED(name, Of)                                                                    \
  extern "C" __global__ void name(const float* __restrict__ gate,                          \
                                  const float* __restrict__ up, float* __restrict__ out, \
                                  int tokens, int width) {                                \
    map(gate, up, out, static_cast<size_t>(tokens) * width, Of());                        \
  }

GATED(swiglu, Gated<Silu>)
GATED(geglu, Gated<Gelu>)
GATED(reglu, Gated<Relu>)
GATED(squared_reglu, Gated<SquaredRelu>)
GATED(drelu, Drelu)
