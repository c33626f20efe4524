// Gated delta rule: one thread per column of a head's state, over all tokens in order; `scratch`
// holds the state between them.
#include "portable.cuh"

extern "C" __global__ void gated_delta_net(
    const float* __restrict__ q, const float* __restrict__ k, const float* __restrict__ v,
    const float* __restrict__ g, const float* __restrict__ beta,
    const int32_t* __restrict__ group_of, const int32_t* __restrict__ sources,
    const int32_t* __restrict__ targets, float* scratch, float* __restrict__ out, float* states,
    int tokens, int groups, int state, int heads, int head_dim, int slots) {
  const int column = blockIdx.x * blockDim.x + threadIdx.x;
  if (column >= heads * head_dim) return;
  const int h = column / head_dim, i = column % head_dim;
  const size_t head = static_cast<size_t>(state) * head_dim, slot = heads * head;
  const size_t row = head_dim, mine = h * head + i;
  for (int t = 0; t < tokens; ++t) {
    const size_t token = static_cast<size_t>(t) * heads + h;
    const size_t first = (static_cast<size_t>(t) * groups + group_of[h]) * state;
    const float decay = expf(g[token]);
    const float* before = sources[t] >= 0 ? states + sources[t] * slot : scratch;
    float held = 0.f;
    for (int n = 0; n < state; ++n) {
      const float s = before[mine + n * row] * decay;
      scratch[mine + n * row] = s;
      held = fmaf(s, k[first + n], held);
    }
    const float delta = beta[token] * (v[token * row + i] - held);
    float total = 0.f;
    for (int n = 0; n < state; ++n) {
      const float s = fmaf(delta, k[first + n], scratch[mine + n * row]);
      scratch[mine + n * row] = s;
      if (targets[t] >= 0) states[targets[t] * slot + mine + n * row] = s;
      total = fmaf(s, q[first + n], total);
    }
    out[token * row + i] = total;
  }
}
