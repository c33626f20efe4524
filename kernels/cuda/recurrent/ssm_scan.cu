// Selective scan (Mamba): one thread per channel, tokens in order; `scratch` holds the state.
#include "portable.cuh"

extern "C" __global__ void ssm_scan(const float* __restrict__ x, const float* __restrict__ dt,
                                    const float* __restrict__ a, const float* __restrict__ b,
                                    const float* __restrict__ c, const float* __restrict__ d,
                                    const int32_t* __restrict__ sources,
                                    const int32_t* __restrict__ targets, float* scratch,
                                    float* __restrict__ out, float* states, int tokens, int inner,
                                    int state, int slots) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= inner) return;
  const size_t row = inner, slot = static_cast<size_t>(state) * row;
  for (int t = 0; t < tokens; ++t) {
    const float own = x[t * row + i], step = dt[t * row + i], moved = own * step;
    const float* before = sources[t] >= 0 ? states + sources[t] * slot : scratch;
    float total = d[i] * own;
    for (int n = 0; n < state; ++n) {
      const float decay = expf(step * a[n * row + i]);
      const float s = fmaf(before[n * row + i], decay, moved * b[t * state + n]);
      scratch[n * row + i] = s;
      if (targets[t] >= 0) states[targets[t] * slot + n * row + i] = s;
      total = fmaf(s, c[t * state + n], total);
    }
    out[t * row + i] = total;
  }
}

extern "C" __global__ void ssm_scan_heads(
    const float* __restrict__ x, const float* __restrict__ dt, const float* __restrict__ a,
    const float* __restrict__ b, const float* __restrict__ c, const float* __restrict__ d,
    const int32_t* __restrict__ sources, const int32_t* __restrict__ targets, float* scratch,
    float* __restrict__ out, float* states, int tokens, int heads, int head_dim, int groups,
    int state, int slots) {
  const int channel = blockIdx.x * blockDim.x + threadIdx.x;
  if (channel >= heads * head_dim) return;
  const int h = channel / head_dim, i = channel % head_dim;
  const int g = static_cast<int>(static_cast<int64_t>(h) * groups / heads);
  const size_t head = static_cast<size_t>(state) * head_dim, slot = heads * head;
  const size_t row = head_dim, mine = h * head + i;
  for (int t = 0; t < tokens; ++t) {
    const size_t token = static_cast<size_t>(t) * heads + h;
    const size_t first = (static_cast<size_t>(t) * groups + g) * state;
    const float own = x[token * row + i], moved = own * dt[token];
    const float decay = expf(dt[token] * a[h]);
    const float* before = sources[t] >= 0 ? states + sources[t] * slot : scratch;
    float total = 0.f;
    for (int n = 0; n < state; ++n) {
      const float s = fmaf(before[mine + n * row], decay, moved * b[first + n]);
      scratch[mine + n * row] = s;
      if (targets[t] >= 0) states[targets[t] * slot + mine + n * row] = s;
      total = fmaf(s, c[first + n], total);
    }
    out[token * row + i] = fmaf(d[h], own, total);
  }
}
