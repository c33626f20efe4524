// act(gate) * up of one element.
#pragma once
#include "activations.cuh"

template <class Activation>
struct Gated {
  __device__ float operator()(float gate, float up) const { return Activation()(gate) * up; }
};

struct Drelu {
  __device__ float operator()(float gate, float up) const { return Relu()(gate) * Relu()(up); }
};

// GATED(name, how an element is computed) for every one of them.
#define EACH_GATED(GATED)                   \
  GATED(swiglu, Gated<Silu>)                \
  GATED(geglu, Gated<Gelu>)                 \
  GATED(reglu, Gated<Relu>)                 \
  GATED(squared_reglu, Gated<SquaredRelu>)  \
  GATED(drelu, Drelu)
