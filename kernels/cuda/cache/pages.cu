// Per-channel minimum and maximum of pages' keys, and upper bounds of pages' scores from them.
#include "cache.cuh"
#include "config.cuh"

// One thread block per page of a sequence, if its extremes are stale; each thread scans the page's
// keys in its channels. Elements are copied in the cache's format.
extern "C" __global__ void page_extremes(const uint8_t* __restrict__ k,
                                         const int* __restrict__ lists,
                                         const int* __restrict__ stale, int64_t page,
                                         uint8_t* __restrict__ out, int capacity, int kv_heads,
                                         int head_dim, int sequences, int pages) {
  const int p = blockIdx.x, s = blockIdx.y, width = kv_heads * head_dim;
  if (p < stale[2 * s] || p >= stale[2 * s + 1]) return;
  const int* const list = lists + static_cast<size_t>(s) * capacity + p * page;
  const size_t row_bytes = static_cast<size_t>(width) * FORMAT::BYTES;
  for (int i = threadIdx.x; i < width; i += blockDim.x) {
    int least = list[0], most = least;
    float low = element_of<FORMAT>(k + least * row_bytes, i), high = low;
    for (int j = 1; j < page; ++j) {
      const float value = element_of<FORMAT>(k + list[j] * row_bytes, i);
      if (value < low) low = value, least = list[j];
      if (value > high) high = value, most = list[j];
    }
    const size_t head = (static_cast<size_t>(s) * kv_heads + i / head_dim) * pages + p;
    uint8_t* const to = out + (2 * head * head_dim + i % head_dim) * FORMAT::BYTES;
    for (int b = 0; b < FORMAT::BYTES; ++b) {
      to[b] = k[least * row_bytes + i * FORMAT::BYTES + b];
      to[head_dim * FORMAT::BYTES + b] = k[most * row_bytes + i * FORMAT::BYTES + b];
    }
  }
}

// One warp per page. A chooser's queries are summed first, positive and negative parts apart, since
// they share the extremes: a page costs as much for eight query heads as for one.
extern "C" __global__ void page_scores(const float* __restrict__ q,
                                       const uint8_t* __restrict__ extremes,
                                       const int* __restrict__ spans, int64_t page,
                                       float* __restrict__ out, int tokens, int heads, int head_dim,
                                       int sequences, int kv_heads, int pages, int choosers) {
  DYNAMIC_SHARED(float, above);
  float* const below = above + head_dim;
  const int t = blockIdx.z, c = blockIdx.y, begin = blockIdx.x * PAGES, end = spans[3 * t + 2];
  const int last = end ? (end - 1) / static_cast<int>(page) : 0, group = heads / choosers;
  if (begin >= last) return;
  const float* const query = q + (static_cast<size_t>(t) * heads + c * group) * head_dim;
  for (int d = threadIdx.x; d < head_dim; d += blockDim.x) {
    float high = 0.f, low = 0.f;
    for (int h = 0; h < group; ++h) {
      const float x = query[static_cast<size_t>(h) * head_dim + d];
      high += fmaxf(x, 0.f), low += fminf(x, 0.f);
    }
    above[d] = high, below[d] = low;
  }
  __syncthreads();
  const size_t row = static_cast<size_t>(head_dim) * FORMAT::BYTES;
  const size_t head = static_cast<size_t>(spans[3 * t]) * kv_heads + c * kv_heads / choosers;
  const int lane = threadIdx.x % WARP, warps = blockDim.x / WARP;
  for (int p = begin + threadIdx.x / WARP; p < min(begin + PAGES, last); p += warps) {
    const uint8_t* const least = extremes + (head * pages + p) * 2 * row;
    float total = 0.f;
    if (head_dim % 8 == 0) {
      for (int d = 8 * lane; d < head_dim; d += 8 * WARP) {
        float low[8], high[8];
        decode(FORMAT(), least, d, low);
        decode(FORMAT(), least + row, d, high);
#pragma unroll
        for (int e = 0; e < 8; ++e)
          total = fmaf(high[e], above[d + e], fmaf(low[e], below[d + e], total));
      }
    } else {
      for (int d = lane; d < head_dim; d += WARP) {
        total = fmaf(element_of<FORMAT>(least, d), below[d], total);
        total = fmaf(element_of<FORMAT>(least + row, d), above[d], total);
      }
    }
    total = warp_sum(total);
    if (lane == 0) out[(static_cast<size_t>(t) * choosers + c) * pages + p] = total;
  }
}
