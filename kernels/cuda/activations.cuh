// Activation functions of one element.
#pragma once

struct Silu {
  __device__ float operator()(float x) const { return x / (1.f + expf(-x)); }
};

// x * sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3))
struct Gelu {
  __device__ float operator()(float x) const {
    const float cubic = fmaf(0.044715f * x, x, 1.f);
    return x / (1.f + expf(-1.5957691216057308f * x * cubic));
  }
};

// max(x, 0) - |x| erfc(|x| / sqrt(2)) / 2; |x| is clamped, so +inf passes and -inf gives NaN.
struct GeluErf {
  __device__ float operator()(float x) const {
    const float largest = 3.402823466e38f, size = x > largest ? largest : fabsf(x);
    return fmaxf(x, 0.f) - size * (0.5f * erfcf(size * 0.70710678118654752f));
  }
};

// max(x, 0), propagating NaN.
struct Relu {
  __device__ float operator()(float x) const { return x < 0.f ? 0.f : x; }
};

struct SquaredRelu {
  __device__ float operator()(float x) const {
    const float active = Relu()(x);
    return active * active;
  }
};

// log(1 + e^x), propagating NaN.
struct Softplus {
  __device__ float operator()(float x) const {
    return fmaxf(x, 0.f) + log1pf(expf(-fabsf(x)));
  }
};

struct Sigmoid {
  __device__ float operator()(float x) const { return 1.f / (1.f + expf(-x)); }
};
