// KIVI: quantizes 32 tokens' keys or values to two bits. One thread block per token that completes
// a group and head, one warp per 32 channels.
#include "kv_write.cuh"

constexpr int GROUP = 32;          // tokens (keys) or channels (values) per scale
constexpr int PAGE_BYTES = 11;     // per channel of a head
constexpr float LARGEST_CODE = 3.f;

// The smallest step of at least `third`: its byte, the upper bits of a float16, and its value.
// Below 2^-14, the least normal one, steps are multiples of 2^-17.
struct Step {
  int byte;
  float size;

  __device__ explicit Step(float third) {
    constexpr float NORMAL = 1.f / 16384, UNITS = 131072.f;
    if (third < NORMAL) {
      byte = static_cast<int>(ceilf(third * UNITS));
      size = static_cast<float>(max(byte, 1)) / UNITS;
    } else {
      const unsigned bits = (__float_as_uint(third) + 0xFFFFF) >> 20;
      byte = static_cast<int>(bits) - 896;
      size = __uint_as_float(bits << 20);
    }
  }
};

// A group's zero point, its minimum with +0 for -0, and step.
struct Scale {
  float zero;
  Step step;

  __device__ Scale(float low, float high)
      : zero(__fadd_rn(low, 0.f)), step(__fsub_rn(high, zero) / LARGEST_CODE) {}

  __device__ unsigned code(float x) const {
    return static_cast<unsigned>(rintf(__fsub_rn(x, zero) / step.size));
  }
};

// A head of a page: codes, then zero points, then steps.
struct Page {
  uint32_t* words;
  uint8_t *zeros, *steps;

  __device__ Page(uint8_t* out, int page, int g, int kv_heads, int head_dim) {
    uint8_t* const own =
        out + (static_cast<size_t>(page) * kv_heads + g) * head_dim * PAGE_BYTES;
    words = reinterpret_cast<uint32_t*>(own);
    zeros = own + 8 * head_dim;
    steps = own + 10 * head_dim;
  }

  __device__ void put(int place, const Scale& scale) const {
    put_half(zeros + 2 * place, to_half(scale.zero));
    steps[place] = static_cast<uint8_t>(scale.step.byte);
  }
};

// Reads channel d of the group's tokens.
struct Tokens {
  const uint8_t* x;
  const int* cells;
  size_t row_bytes;
  int column;

  __device__ Tokens(const uint8_t* x, const int* lists, const int* span, int g, int capacity,
                    int kv_heads, int head_dim)
      : x(x), cells(lists + static_cast<size_t>(span[0]) * capacity + span[1] - GROUP),
        row_bytes(static_cast<size_t>(kv_heads) * head_dim * FORMAT::BYTES), column(g * head_dim) {}

  __device__ float operator()(int token, int d) const {
    return to_float(reinterpret_cast<const half_t*>(x + cells[token] * row_bytes)[column + d]);
  }
};

#define ARGUMENTS                                                                               \
  const uint8_t *__restrict__ x, const int *__restrict__ lists, const int *__restrict__ spans, \
      const int *__restrict__ into, uint8_t *__restrict__ out, int capacity, int kv_heads,     \
      int head_dim, int sequences, int tokens, int pages

// Quantized by channel: each lane has a channel, and its group is all tokens. A word has a token's
// codes of sixteen channels, combined by warp shuffles; lane t % 16 keeps it.
extern "C" __global__ void __launch_bounds__(256) kivi_keys(ARGUMENTS) {
  const int page = into[blockIdx.x], g = blockIdx.y, lane = threadIdx.x % WARP;
  if (page < 0) return;
  const Tokens tokens_of(x, lists, spans + 3 * blockIdx.x, g, capacity, kv_heads, head_dim);
  const Page to(out, page, g, kv_heads, head_dim);
  for (int d = threadIdx.x; d < head_dim; d += blockDim.x) {
    float own[GROUP], low = INFINITY, high = -INFINITY;
#pragma unroll
    for (int t = 0; t < GROUP; ++t) {
      own[t] = tokens_of(t, d);
      low = fminf(low, own[t]), high = fmaxf(high, own[t]);
    }
    const Scale scale(low, high);
    to.put(d, scale);
    uint32_t early = 0, late = 0;  // words that the lane keeps
#pragma unroll
    for (int t = 0; t < GROUP; ++t) {
      uint32_t word = scale.code(own[t]) << 2 * (lane % 16);
#pragma unroll
      for (int m = 8; m; m /= 2) word |= __shfl_xor_sync(ALL, word, m);
      if (t % 16 == lane % 16) (t < 16 ? early : late) = word;
    }
    uint32_t* const words = to.words + d / 16 * GROUP + lane % 16;
    words[0] = early, words[16] = late;
  }
}

// Quantized by token: a warp has a group of 32 channels; each lane packs its channel's codes.
extern "C" __global__ void __launch_bounds__(256) kivi_values(ARGUMENTS) {
  const int page = into[blockIdx.x], g = blockIdx.y, lane = threadIdx.x % WARP;
  if (page < 0) return;
  const Tokens tokens_of(x, lists, spans + 3 * blockIdx.x, g, capacity, kv_heads, head_dim);
  const Page to(out, page, g, kv_heads, head_dim);
  for (int d = threadIdx.x; d < head_dim; d += blockDim.x) {
    uint32_t codes[2] = {};
#pragma unroll 4
    for (int t = 0; t < GROUP; ++t) {
      const float own = tokens_of(t, d);
      const Scale scale(-warp_max(-own), warp_max(own));
      codes[t / 16] |= scale.code(own) << 2 * (t % 16);
      if (t == lane) to.put(d, scale);  // indexed by token, not channel
    }
    uint32_t* const words = to.words + d / 16 * GROUP + d % 16;
    words[0] = codes[0], words[16] = codes[1];
  }
}
