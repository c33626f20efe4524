// Causal depthwise 1D convolution: one thread per channel, over all tokens in order.
#include "portable.cuh"

extern "C" __global__ void causal_conv1d(const float* __restrict__ x,
                                         const float* __restrict__ weight,
                                         const float* __restrict__ bias,
                                         const int32_t* __restrict__ sources,
                                         const int32_t* __restrict__ targets,
                                         float* __restrict__ out, float* states, int tokens,
                                         int width, int taps, int slots, int kept) {
  const int c = blockIdx.x * blockDim.x + threadIdx.x;
  if (c >= width) return;
  const size_t row = width, slot = static_cast<size_t>(kept) * row;
  int begin = 0;
  const float* before = states;
  // token i of the run, or of the state before it
  const auto column = [&](int i) { return i >= begin ? x[i * row + c] : before[(kept + i - begin) * row + c]; };
  for (int t = 0; t < tokens; ++t) {
    if (sources[t] >= 0) {
      begin = t;
      before = states + sources[t] * slot;
    }
    float total = bias[c];
    for (int j = 0; j < taps; ++j) total = fmaf(weight[j * row + c], column(t - kept + j), total);
    out[t * row + c] = total;
    if (targets[t] >= 0)
      for (int j = 0; j < kept; ++j)
        states[targets[t] * slot + j * row + c] = column(t - kept + 1 + j);
  }
}
