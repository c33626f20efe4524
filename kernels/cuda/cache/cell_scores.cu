// Eviction scores of cells by their keys (knorm: norm; keydiff: cosine to the mean direction), in
// float64, since they run once per prompt; one warp per cell and KV head.
#include "cache.cuh"
#include "config.cuh"

static __device__ __forceinline__ double sum_of_lanes(double x) {
  for (int m = WARP / 2; m; m /= 2) x += __shfl_xor_sync(ALL, x, m);
  return x;
}

// Head g of a cell's key.
struct Key {
  const uint8_t* row;
  int column, head_dim;

  __device__ Key(const uint8_t* k, int cell, int g, int kv_heads, int head_dim)
      : row(k + static_cast<size_t>(cell) * kv_heads * (head_dim / FORMAT::BLOCK * FORMAT::BYTES)),
        column(g * head_dim), head_dim(head_dim) {}

  __device__ double operator[](int d) const { return element_of<FORMAT>(row, column + d); }

  __device__ double length() const {
    double total = 0.;
    for (int d = threadIdx.x % WARP; d < head_dim; d += WARP) {
      const double x = (*this)[d];
      total = fma(x, x, total);
    }
    return sqrt(sum_of_lanes(total));
  }
};

// The warp's cell.
static __device__ __forceinline__ int own_cell() {
  return blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
}

extern "C" __global__ void knorm(const uint8_t* __restrict__ k, const int* __restrict__ cells,
                                 int64_t, float* __restrict__ out, int capacity, int kv_heads,
                                 int head_dim, int held) {
  const int j = own_cell(), g = blockIdx.y;
  if (j >= held) return;
  const double length = Key(k, cells[j], g, kv_heads, head_dim).length();
  if (threadIdx.x % WARP == 0) out[static_cast<size_t>(g) * held + j] = static_cast<float>(-length);
}

// Partial sums of the keys' directions: one warp per part and head.
extern "C" __global__ void keydiff_parts(const uint8_t* __restrict__ k,
                                         const int* __restrict__ cells, int64_t,
                                         double* __restrict__ scratch, int capacity, int kv_heads,
                                         int head_dim, int held) {
  const int g = blockIdx.y, each = (held + PARTS - 1) / PARTS;
  double* const sums = scratch + (static_cast<size_t>(blockIdx.x) * kv_heads + g) * head_dim;
  for (int d = threadIdx.x; d < head_dim; d += WARP) sums[d] = 0.;
  for (int j = blockIdx.x * each; j < min(held, static_cast<int>(blockIdx.x + 1) * each); ++j) {
    const Key key(k, cells[j], g, kv_heads, head_dim);
    const double length = key.length();
    for (int d = threadIdx.x; d < head_dim && length > 0.; d += WARP) sums[d] += key[d] / length;
  }
}

// The mean direction, of length 1 or 0, in place of the first part's sums: one block per head.
extern "C" __global__ void keydiff_anchors(int64_t, double* __restrict__ scratch,
                                           int kv_heads, int head_dim) {
  __shared__ double partial[WARP];
  double* const sums = scratch + static_cast<size_t>(blockIdx.x) * head_dim;
  const size_t apart = static_cast<size_t>(kv_heads) * head_dim;
  double squares = 0.;
  for (int d = threadIdx.x; d < head_dim; d += blockDim.x) {
    double total = 0.;
    for (int p = 0; p < PARTS; ++p) total += sums[p * apart + d];
    sums[d] = total;
    squares = fma(total, total, squares);
  }
  const double length = sqrt(block_reduce(squares, partial, Sum()));
  for (int d = threadIdx.x; d < head_dim; d += blockDim.x)
    sums[d] = length > 0. ? sums[d] / length : 0.;
}

extern "C" __global__ void keydiff(const uint8_t* __restrict__ k, const int* __restrict__ cells,
                                   int64_t, const double* __restrict__ scratch,
                                   float* __restrict__ out, int capacity, int kv_heads,
                                   int head_dim, int held) {
  const int j = own_cell(), g = blockIdx.y;
  if (j >= held) return;
  const Key key(k, cells[j], g, kv_heads, head_dim);
  const double* const anchor = scratch + static_cast<size_t>(g) * head_dim;
  double dot = 0.;
  for (int d = threadIdx.x % WARP; d < head_dim; d += WARP) dot = fma(key[d], anchor[d], dot);
  dot = sum_of_lanes(dot);
  const double length = key.length();
  if (threadIdx.x % WARP == 0)
    out[static_cast<size_t>(g) * held + j] = length > 0. ? static_cast<float>(-dot / length) : 0.f;
}
