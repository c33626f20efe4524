// RoPE of queries and keys, and the write of keys and values to the KV cache, fused: a thread per
// element. blockIdx.x is the token; blockIdx.y runs over its queries, then keys, then values.
#include "kv_write.cuh"
#include "rope.cuh"

constexpr int THREADS = 256;

// Rotated element i of a row of heads; pair p of a head is p * step and p * step + beside.
static __device__ __forceinline__ float rotated(const float* __restrict__ row,
                                                const float* __restrict__ rotation, int i,
                                                int head_dim, int pairs, int step, int beside) {
  const int within = static_cast<unsigned>(i) % static_cast<unsigned>(head_dim);
  if (within >= 2 * pairs) return row[i];
  const bool second = step == 2 ? within % 2 : within >= pairs;
  const int pair = step == 2 ? within / 2 : second ? within - pairs : within;
  const float cosine = rotation[2 * pair], sine = rotation[2 * pair + 1];
  const float* const first = row + (second ? i - beside : i);
  const float a = first[0], b = first[beside];
  return second ? rotated_second(a, b, cosine, sine) : rotated_first(a, b, cosine, sine);
}

static __device__ __forceinline__ void turn_and_write(
    const float* __restrict__ q, const float* __restrict__ k, const float* __restrict__ v,
    const float* __restrict__ rotation, const int32_t* __restrict__ cells, float* __restrict__ q_out,
    float* __restrict__ k_out, uint8_t* __restrict__ k_cache, uint8_t* __restrict__ v_cache,
    int heads, int head_dim, int pairs, int width, int step, int beside) {
  wait_for_previous();
  const int all = heads * head_dim, block = blockIdx.y;
  const int of_q = (all + THREADS - 1) / THREADS, of_k = (width + THREADS - 1) / THREADS;
  const size_t token = blockIdx.x;
  const int cell = cells[token];
  rotation += token * 2 * pairs;
  if (block < of_q) {
    const int i = block * THREADS + threadIdx.x;
    if (i < all)
      q_out[token * all + i] = rotated(q + token * all, rotation, i, head_dim, pairs, step, beside);
  } else if (block < of_q + of_k) {
    const int i = (block - of_q) * THREADS + threadIdx.x;
    if (i >= width) return;
    const float own = rotated(k + token * width, rotation, i, head_dim, pairs, step, beside);
    k_out[token * width + i] = own;
    write_to_cell(own, k_cache, cell, width, i);
  } else {
    const int i = (block - of_q - of_k) * THREADS + threadIdx.x;
    if (i < width) write_to_cell(v[token * width + i], v_cache, cell, width, i);
  }
}

#define ROPE_WRITE(name, STEP, BESIDE)                                                             \
  extern "C" __global__ void __launch_bounds__(THREADS) name(                                      \
      const float* q, const float* k, const float* v, const float* rotation, const int32_t* cells, \
      float* q_out, float* k_out, uint8_t* k_cache, uint8_t* v_cache, int tokens, int heads,       \
      int head_dim, int kv_heads, int width, int pairs, int capacity) {                            \
    turn_and_write(q, k, v, rotation, cells, q_out, k_out, k_cache, v_cache, heads, head_dim,      \
                   pairs, width, STEP, BESIDE);                                                    \
  }
ROPE_WRITE(rope_norm_write, 2, 1)
ROPE_WRITE(rope_neox_write, 1, pairs)
