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

// (u + 1) * g * sigmoid(alpha * g), of what the limit leaves; NaN stays NaN.
struct SwigluOai {
  float alpha, limit;
  __device__ float operator()(float gate, float up) const {
    const float g = gate > limit ? limit : gate;
    const float u = up > limit ? limit : up < -limit ? -limit : up;
    return g / (1.f + expf(-alpha * g)) * (u + 1.f);
  }
};

// GATED(name, how an element is computed) for every one that has no scalars.
#define EACH_GATED(GATED)                   \
  GATED(swiglu, Gated<Silu>)                \
  GATED(geglu, Gated<Gelu>)                 \
  GATED(reglu, Gated<Relu>)                 \
  GATED(squared_reglu, Gated<SquaredRelu>)  \
  GATED(drelu, Drelu)
