// Gated activations fused into the epilogue of the gate and up projections: JOINED(name, functor).
#pragma once
#include "gated_activations.cuh"

#define EACH_JOINED(JOINED)    \
  JOINED(swiglu, Gated<Silu>)  \
  JOINED(geglu, Gated<Gelu>)
