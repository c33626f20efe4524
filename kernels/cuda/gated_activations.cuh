// Gated activations of one element: act(gate) * up.
#pragma once
#include "activations.cuh"

template <class Activation>
struct Gated {
  __device__ float operator()(float gate, float up) const { return Activation()(gate) * up; }
};

struct Drelu {
  __device__ float operator()(float gate, float up) const { return Relu()(gate) * Relu()(up); }
};

// (u + 1) * g * sigmoid(alpha * g), g clamped from above and u to +-limit; propagates NaN.
struct SwigluOai {
  float alpha, limit;
  __device__ float operator()(float gate, float up) const {
    const float g = gate > limit ? limit : gate;
    const float u = up > limit ? limit : up < -limit ? -limit : up;
    return g / (1.f + expf(-alpha * g)) * (u + 1.f);
  }
};

// Expands GATED(name, functor) for every gated activation without scalar parameters.
#define EACH_GATED(GATED)                   \
  GATED(swiglu, Gated<Silu>)                \
  GATED(geglu, Gated<Gelu>)                 \
  GATED(reglu, Gated<Relu>)                 \
  GATED(squared_reglu, Gated<SquaredRelu>)  \
  GATED(drelu, Drelu)
