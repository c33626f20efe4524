// F16 and BF16 weights times float32 activations on tensor cores: an activation is split into a sum
// of two float16 or three bfloat16 (split.cuh), and each part is multiplied by the weight.
//
// mma.sync gives the same product of a HALF of an item whatever the other rows and tokens of the
// fragments (multiply_half), and halves are added in order. So a token's bits depend neither on the
// batch nor on the division of work. For float16, the activations of a half are scaled below 2^15
// by a power of 2, and the product is scaled back.
#pragma once
#include "linear.cuh"
#include "split.cuh"
#include "staging.cuh"

using f16 = half_t;
using bf16 = bfloat_t;
using T = FORMAT;
constexpr int HALF = ITEM / 2;   // elements
constexpr int RUN = 8;           // elements in 16 bytes
constexpr int PARTS = T::PARTS;  // per activation
constexpr bool SCALED = PARTS == 2;

static __device__ __forceinline__ int items_of(int hidden) { return (hidden + ITEM - 1) / ITEM; }

// Eight split activations of a half; the other lanes of a group of four have the rest.
struct Activations {
  uint32_t parts[PARTS][4];
  float power = 1.f;

  __device__ __forceinline__ explicit Activations(const float (&x)[8]) {
    if constexpr (SCALED) {
      float largest = 0.f;
#pragma unroll
      for (int i = 0; i < 8; ++i) largest = fmaxf(largest, fabsf(x[i]));
      for (int m = 1; m < 4; m *= 2) largest = fmaxf(largest, __shfl_xor_sync(ALL, largest, m));
      const Power found(largest);
      power = found.grow;
#pragma unroll
      for (int i = 0; i < 4; ++i)
        split_in_two(x[2 * i] * found.shrink, x[2 * i + 1] * found.shrink, parts[0][i], parts[1][i]);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        uint32_t found[3];
        split_in_three(x[2 * i], x[2 * i + 1], found);
#pragma unroll
        for (int p = 0; p < PARTS; ++p) parts[p][i] = found[p];
      }
    }
  }
};

// Loads N activations of a token, zeros past its end. Rows are whole runs.
template <int N>
static __device__ __forceinline__ void load_x(const float* __restrict__ token, int first,
                                              int hidden, float* to) {
#pragma unroll
  for (int i = 0; i < N; ++i) to[i] = 0.f;
  if (first < hidden)
    load_words<N>(reinterpret_cast<const uint32_t*>(token + first),
                  reinterpret_cast<uint32_t*>(to));
}

// found += a half of 16 rows by 8 tokens, 16 elements at a time, the smallest parts first.
static __device__ __forceinline__ void multiply_half(const uint32_t (&a)[2][4],
                                                     const uint32_t (&b)[PARTS][4],
                                                     float (&found)[4]) {
#pragma unroll
  for (int s = 0; s < 2; ++s)
#pragma unroll
    for (int p = PARTS - 1; p >= 0; --p)
      mma_m16n8k16<T>(found, a[s], {b[p][2 * s], b[p][2 * s + 1]});
}

static __device__ __forceinline__ float add_half(float sum, float found, float power) {
  return SCALED ? fmaf(power, found, sum) : sum + found;
}

// Splitting an infinity leaves NaN, and so does an infinite weight times parts of both signs or a
// zero part: a sum that is NaN is recomputed from unsplit activations.
static __device__ __forceinline__ float unless_nan(float sum, const float* __restrict__ token,
                                                   const T* __restrict__ row, int hidden) {
  if (sum == sum) return sum;
  sum = 0.f;
#pragma unroll 1
  for (int i = 0; i < hidden; ++i) sum = fmaf(to_float(row[i]), token[i], sum);
  return sum;
}

// Up to eight tokens: a thread block computes 16 rows. Each of its warps multiplies every
// TENSOR_WARPS-th item, from its own cp.async pipeline of AHEAD items (zeros past the end). A lane
// splits activations of token g and gets products of rows g and g + 8 by tokens 2t and 2t + 1;
// these go through shared memory, where each thread of the first four warps adds the halves of one
// row and token, while the others multiply.
constexpr int FEW_TOKENS = 8, FEW_SUMS = FEW_ROWS * FEW_TOKENS;
constexpr int AHEAD = FEW_STAGES - 1;
constexpr int FEW_HALVES = 2 * TENSOR_WARPS;  // per iteration

#define FEW_ON_TENSOR_CORES __launch_bounds__(TENSOR_WARPS * WARP, FEW_AT_ONCE)

// Halves found in one iteration, and what scales them back.
struct Found {
  float sums[FEW_HALVES][FEW_ROWS][FEW_TOKENS], powers[FEW_HALVES][FEW_TOKENS];
};

struct FewShared {
  uint4 runs[TENSOR_WARPS][FEW_STAGES][FEW_ROWS][ITEM / RUN];  // run i of row r is at i ^ r % 8
  Found found[2];  // of one iteration and of the next
};

// Returns this thread's sum, of row threadIdx.x / FEW_TOKENS, where that is below FEW_ROWS; row i
// begins at row_at(i).
template <class RowAt>
static __device__ __forceinline__ float product_of_few(const float* __restrict__ x, int tokens,
                                                       int hidden, FewShared& shared,
                                                       RowAt row_at) {
  const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
  const int items = items_of(hidden);
  auto& own = shared.runs[warp];
  const T* rows[4];  // a lane copies a run of each
#pragma unroll
  for (int k = 0; k < 4; ++k) rows[k] = row_at(lane / 8 + 4 * k) + lane % 8 * RUN;
  const float* const token = x + static_cast<size_t>(min(g, tokens - 1)) * hidden;
  const auto copy = [&](int item, int stage) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int row = lane / 8 + 4 * k, run = lane % 8;
      copy_async_or_zero(&own[stage][row][run ^ row % 8],
                    reinterpret_cast<const uint4*>(rows[k] + item * ITEM),
                    item * ITEM + run * RUN < hidden);
    }
    commit_group();
  };
  float next[2][8];
  const auto load = [&](int item) {
#pragma unroll
    for (int i = 0; i < 8; ++i)
      load_x<2>(token, item * ITEM + 8 * i + 2 * t, hidden, next[i / 4] + i % 4 * 2);
  };

#pragma unroll 1
  for (int s = 0; s < AHEAD; ++s) copy(warp + s * TENSOR_WARPS, s);
  wait_for_previous();
  load(warp);
  const int own_row = threadIdx.x / FEW_TOKENS, own_token = threadIdx.x % FEW_TOKENS;
  const bool adds = threadIdx.x < FEW_SUMS;
  float sum = 0.f;
  int stage = 0, turn = 0;
#pragma unroll 1
  for (int first = 0; first < items; first += TENSOR_WARPS, turn ^= 1) {
    const int item = first + warp;
    await_copies<AHEAD - 1>();
    __syncwarp();  // all lanes are done with the previous stage
    copy(item + AHEAD * TENSOR_WARPS, stage == 0 ? AHEAD : stage - 1);
    const Activations halves[2] = {Activations(next[0]), Activations(next[1])};
    load(item + TENSOR_WARPS);
    float found[2][4] = {};
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      uint32_t a[2][4];
#pragma unroll
      for (int s = 0; s < 2; ++s) {
        const int row = lane % 16, run = 4 * h + 2 * s + lane / 16;
        load_matrices(a[s], reinterpret_cast<const uint8_t*>(own[stage]),
                      (row * (ITEM / RUN) + (run ^ row % 8)) * 16);
      }
      multiply_half(a, halves[h].parts, found[h]);
    }
    Found& all = shared.found[turn];  // those of the iteration before last have been added
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      auto& to = all.sums[2 * warp + h];
#pragma unroll
      for (int e = 0; e < 4; e += 2)
        *reinterpret_cast<float2*>(&to[g + 4 * e][2 * t]) = float2{found[h][e], found[h][e + 1]};
      if (SCALED && t == 0) all.powers[2 * warp + h][g] = halves[h].power;
    }
    __syncthreads();
    if (adds)
#pragma unroll
      for (int h = 0; h < FEW_HALVES; ++h)
        sum = add_half(sum, all.sums[h][own_row][own_token],
                       SCALED ? all.powers[h][own_token] : 1.f);
    stage = stage == AHEAD ? 0 : stage + 1;
  }

  if (!adds) return 0.f;
  const size_t own_x = static_cast<size_t>(min(own_token, tokens - 1)) * hidden;
  return unless_nan(sum, x + own_x, row_at(own_row), hidden);
}

static __device__ __forceinline__ void up_to_eight(const float* __restrict__ x, const Rows& of,
                                                   int tokens, int hidden, FewShared& shared) {
  const float sum = product_of_few(x, tokens, hidden, shared, [&](int i) {
    return reinterpret_cast<const T*>(of.weight) +
           static_cast<size_t>(min(of.first + i, of.count - 1)) * hidden;
  });
  const int row = of.first + threadIdx.x / FEW_TOKENS, token = threadIdx.x % FEW_TOKENS;
  if (threadIdx.x < FEW_SUMS && row < of.count && token < tokens)
    of.out[static_cast<size_t>(token) * of.count + row] = sum;
}
