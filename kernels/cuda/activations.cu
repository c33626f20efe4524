// Element-wise activations: each thread computes four consecutive elements.
#include "elementwise.cuh"

#include "activations.cuh"

#define ACTIVATION(name, Of)                                                             \
  extern "C" __global__ void name(const float* __restrict__ x, float* __restrict__ out, \
                                  int tokens, int width) {                              \
    map(x, out, static_cast<size_t>(tokens) * width, Of());                             \
  }

ACTIVATION(silu, Silu)
ACTIVATION(gelu, Gelu)
ACTIVATION(gelu_erf, GeluErf)
ACTIVATION(relu, Relu)
ACTIVATION(squared_relu, SquaredRelu)
ACTIVATION(softplus, Softplus)
ACTIVATION(sigmoid, Sigmoid)
