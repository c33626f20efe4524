// MiniCache: merges keys or values of two layers into one page. slerp_weights computes
// interpolation weights, in float64 as it runs once per 256 tokens; merge_blocks writes pages.
#include "cache.cuh"

constexpr int GROUP = 256, PLAIN = 9 * GROUP;  // a page's tokens; its bytes besides rows
constexpr int COSINE = 0, OF_X = 1, OF_Y = 2, LENGTH_X = 3, LENGTH_Y = 4;
constexpr double LEAST_COSINE = 1. / 1048576 - 1.;  // limits the angle of opposite directions

// Slerp weight sin(part * angle) / sin(angle), or `part` if the angle is 0.
static __device__ __forceinline__ double share_of(double part, double angle) {
  return angle > 0. ? sin(part * angle) / sin(angle) : part;
}

// Norms and dot product of a token's two vectors (warp shuffle reduction), and its slerp weights.
struct Weights {
  double of_x = 0., of_y = 0., of_both = 0.;

  __device__ Weights(const uint8_t* x, const uint8_t* y, int head_dim) {
    for (int d = threadIdx.x % WARP; d < head_dim; d += WARP) {
      const double a = element_of<FORMAT>(x, d), b = element_of<FORMAT>(y, d);
      of_x = fma(a, a, of_x), of_y = fma(b, b, of_y), of_both = fma(a, b, of_both);
    }
    for (int m = WARP / 2; m; m /= 2) {
      of_x += __shfl_xor_sync(ALL, of_x, m);
      of_y += __shfl_xor_sync(ALL, of_y, m);
      of_both += __shfl_xor_sync(ALL, of_both, m);
    }
  }

  __device__ void put(float* out, int places, double towards) const {
    const double length_x = sqrt(of_x), length_y = sqrt(of_y), both = length_x * length_y;
    const double cosine = both > 0. ? of_both / both : 1.;
    const double angle = acos(fmin(fmax(cosine, LEAST_COSINE), 1.));
    const double share_x = of_y > 0. ? share_of(1. - towards, angle) : 1.;
    const double share_y = of_x > 0. ? share_of(towards, angle) : 1.;
    out[COSINE * places] = static_cast<float>(cosine);
    out[OF_X * places] = of_x > 0. ? static_cast<float>(share_x / length_x) : 0.f;
    out[OF_Y * places] = of_y > 0. ? static_cast<float>(share_y / length_y) : 0.f;
    out[LENGTH_X * places] = static_cast<float>(length_x);
    out[LENGTH_Y * places] = static_cast<float>(length_y);
  }
};

// Grid-stride loop over the tokens that are due, mostly none; one warp per token.
extern "C" __global__ void __launch_bounds__(256)
    slerp_weights(const uint8_t* __restrict__ x, const uint8_t* __restrict__ y,
                  const int* __restrict__ lists, const int* __restrict__ due, double towards,
                  float* __restrict__ out, int capacity, int kv_heads, int head_dim, int sequences,
                  int places) {
  const int g = blockIdx.y, s = blockIdx.z, end = due[2 * s + 1] * GROUP;
  const int warps = blockDim.x / WARP, warp = blockIdx.x * warps + threadIdx.x / WARP;
  const int* const list = lists + static_cast<size_t>(s) * capacity;
  float* const own = out + (static_cast<size_t>(s) * kv_heads + g) * 5 * places;
  for (int place = due[2 * s] * GROUP + warp; place < end; place += gridDim.x * warps) {
    const size_t row = (static_cast<size_t>(list[place]) * kv_heads + g) * head_dim * FORMAT::BYTES;
    const Weights weights(x + row, y + row, head_dim);
    if (threadIdx.x % WARP == 0) weights.put(own + place, places, towards);
  }
}

// Weighted sums of two float16 pairs, each operation rounded to float32, sums then to float16.
static __device__ __forceinline__ uint32_t between(uint32_t x, uint32_t y, float of_x, float of_y) {
  float lower[2], upper[2];
  unpack(x, lower), unpack(y, upper);
  uint32_t both = 0;
  for (int i = 0; i < 2; ++i) {
    const float sum = __fadd_rn(__fmul_rn(of_x, lower[i]), __fmul_rn(of_y, upper[i]));
    both |= static_cast<uint32_t>(to_half(sum).bits) << 16 * i;
  }
  return both;
}

// Row layout of a head's page, by one thread block, one thread per token: the `retained` tokens of
// lowest cosine (ties: earlier first) keep both layers' rows, the others share a merged row. Then
// each warp writes tokens' rows in turn.
struct Merging {
  float cosines[GROUP];
  int numbers[GROUP], counts[GROUP / WARP];

  // Row index of the thread's token, by rank and ballot prefix sum.
  __device__ int number(float own, int retained) {
    const int i = threadIdx.x, lane = i % WARP;
    cosines[i] = own;  // the previous page's comparisons are done
    __syncthreads();
    int before = 0;
    for (int j = 0; j < GROUP; ++j) before += cosines[j] < own || (cosines[j] == own && j < i);
    const bool apart = before < retained;
    const uint32_t taken = __ballot_sync(ALL, apart);
    if (lane == 0) counts[i / WARP] = __popc(taken);
    __syncthreads();
    int earlier = __popc(taken & ((1u << lane) - 1));
    for (int w = 0; w < i / WARP; ++w) earlier += counts[w];
    numbers[i] = apart ? GROUP - retained + earlier : i - earlier;
    __syncthreads();
    return numbers[i];
  }
};

// Thread blocks stride over the pages that are due, mostly none.
extern "C" __global__ void __launch_bounds__(GROUP)
    merge_blocks(const uint8_t* __restrict__ x, const uint8_t* __restrict__ y,
                 const float* __restrict__ weights, const int* __restrict__ lists,
                 const int* __restrict__ due, const int* __restrict__ page_lists,
                 uint8_t* __restrict__ out, int capacity, int kv_heads, int head_dim,
                 int sequences, int places, int slots, int pages, int size) {
  __shared__ Merging workspace;
  const int g = blockIdx.y, s = blockIdx.z, i = threadIdx.x, lane = i % WARP;
  const int width = head_dim * FORMAT::BYTES, retained = (size - PLAIN) / width - GROUP;
  for (int p = due[2 * s] + blockIdx.x; p < due[2 * s + 1]; p += gridDim.x) {
    const float* const known =
        weights + (static_cast<size_t>(s) * kv_heads + g) * 5 * places + p * GROUP;
    const size_t page = page_lists[static_cast<size_t>(s) * slots + p];
    uint8_t* const rows = out + (page * kv_heads + g) * size;
    const int own = workspace.number(known[COSINE * places + i], retained);
    const bool is_apart = own >= GROUP - retained;
    float* const lengths = reinterpret_cast<float*>(rows + (GROUP + retained) * width);
    lengths[i] = is_apart ? 1.f : known[LENGTH_X * places + i];
    lengths[GROUP + i] = is_apart ? 1.f : known[LENGTH_Y * places + i];
    reinterpret_cast<uint8_t*>(lengths + 2 * GROUP)[i] = static_cast<uint8_t>(own);
    const int* const list = lists + static_cast<size_t>(s) * capacity + p * GROUP;
    for (int token = i / WARP; token < GROUP; token += GROUP / WARP) {
      const size_t row = (static_cast<size_t>(list[token]) * kv_heads + g) * width;
      const float of_x = known[OF_X * places + token], of_y = known[OF_Y * places + token];
      const int number = workspace.numbers[token];
      uint32_t* const to = reinterpret_cast<uint32_t*>(rows + number * width);
      for (int w = lane; w < width / 4; w += WARP) {
        const uint32_t lower = at<uint32_t>(x + row, w), upper = at<uint32_t>(y + row, w);
        if (number >= GROUP - retained) {
          to[w] = lower;
          to[retained * width / 4 + w] = upper;
        } else {
          to[w] = between(lower, upper, of_x, of_y);
        }
      }
    }
  }
}
