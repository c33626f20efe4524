// The gated activations that are computed where their products are: JOINED(name, how).
#pragma once
#include "gated_activations.cuh"

#define EACH_JOINED(JOINED)    \
  JOINED(swiglu, Gated<Silu>)  \
  JOINED(geglu, Gated<Gelu>)
