// Weighted sum of active neurons' rows, split over neurons (split-K). A warp has 256 columns, eight
// per lane, and a strand: a fixed range of neurons, added in order. A thread block adds its eight
// strands in order, sparse_axpy_merge.cu adds those of several. So a token's sum depends neither on
// neurons listed for others nor on other tokens.
#include "grid_formats.cuh"
#include "pieces.cuh"

// Lower bound of `value` in `count` ascending rows: a search with a probe per lane.
static __device__ __forceinline__ int first_from(const int* __restrict__ rows, int count,
                                                 int value) {
  int begin = 0, end = count;
  while (begin < end) {
    const int step = (end - begin + WARP - 1) / WARP;
    const int probe = begin + (threadIdx.x % WARP + 1) * step - 1;
    const bool below = probe < end && rows[probe] < value;
    begin += __popc(__ballot_sync(ALL, below)) * step;
    end = min(end, begin + step - 1);
  }
  return min(begin, count);
}

// Any format: a lane dequantises eight adjacent columns one by one.
struct Plain {
  static constexpr int BATCH = 1;
  float values[COLUMNS];

  static __device__ __forceinline__ int column(int lane, int k) { return lane * COLUMNS + k; }

  __device__ __forceinline__ void load(const uint8_t* row, int begin, int hidden, int lane) {
    constexpr int BLOCKS = FORMAT::BLOCK < COLUMNS ? COLUMNS : 1;  // floats are blocks of one
    const int first = begin + column(lane, 0), place = first % FORMAT::BLOCK;
    const uint8_t* const block = row + static_cast<size_t>(first / FORMAT::BLOCK) * FORMAT::BYTES;
#pragma unroll
    for (int k = 0; k < COLUMNS; ++k)
      values[k] = first + k >= hidden ? 0.f
                  : BLOCKS > 1        ? FORMAT::element(block + k * FORMAT::BYTES, 0)
                                      : FORMAT::element(block, place + k);
  }

  __device__ __forceinline__ void decode(float (&w)[COLUMNS]) const {
#pragma unroll
    for (int k = 0; k < COLUMNS; ++k) w[k] = values[k];
  }
};

// Operands, for the tokens from `first` on.
struct Rows {
  const float* __restrict__ a;
  const uint8_t* __restrict__ weight;
  const int* __restrict__ rows;
  const int* __restrict__ slots;
  size_t stride;
  int count, neurons, hidden, first, tokens;
};

// Adds a strand's rows, from column `begin` on, to the lane's sums. Rows whose factors are all zero
// are not read.
template <int TOKENS, class Piece>
static __device__ __forceinline__ void add_strand(const Rows& s, int strand, int strands, int begin,
                                                  float (&sums)[TOKENS][COLUMNS]) {
  const int lane = threadIdx.x % WARP;
  const int64_t n = s.neurons;
  int entry = first_from(s.rows, s.count, n * strand / strands);
  const int end = first_from(s.rows, s.count, n * (strand + 1) / strands);
  for (; entry < end; entry += WARP) {
    const bool listed = entry + lane < end;
    const int neuron = listed ? s.rows[entry + lane] : 0;
    const int slot = listed ? s.slots[neuron] : 0;
    float factors[TOKENS];
    bool wanted = false;
#pragma unroll
    for (int t = 0; t < TOKENS; ++t) {
      const size_t at = static_cast<size_t>(s.first + t) * s.neurons + neuron;
      factors[t] = listed && t < s.tokens ? s.a[at] : 0.f;
      wanted |= factors[t] != 0.f;
    }
    for (uint32_t left = __ballot_sync(ALL, wanted); left;) {
      Piece pieces[Piece::BATCH];
      int from[Piece::BATCH], found = 0;
#pragma unroll
      for (int b = 0; b < Piece::BATCH; ++b) {
        from[b] = left ? __ffs(left) - 1 : 0;
        found += left != 0;
        left &= left - 1;
        const int row = __shfl_sync(ALL, slot, from[b]);
        if (b < found) pieces[b].load(s.weight + row * s.stride, begin, s.hidden, lane);
      }
#pragma unroll
      for (int b = 0; b < Piece::BATCH; ++b) {
        if (b >= found) break;
        float w[COLUMNS];
        pieces[b].decode(w);
#pragma unroll
        for (int t = 0; t < TOKENS; ++t) {
          const float factor = __shfl_sync(ALL, factors[t], from[b]);
#pragma unroll
          for (int k = 0; k < COLUMNS; ++k) sums[t][k] = fmaf(w[k], factor, sums[t][k]);
        }
      }
    }
  }
}

// Adds the thread block's strands in order through shared memory, a column per thread.
template <int TOKENS, class Piece>
static __device__ __forceinline__ void add_warps(const float (&sums)[TOKENS][COLUMNS], int tokens,
                                                 float (*shared)[WIDTH], float (&totals)[TOKENS]) {
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
#pragma unroll
  for (int t = 0; t < TOKENS; ++t) {
    if (t >= tokens) break;
#pragma unroll
    for (int k = 0; k < COLUMNS; k += 4)
      *reinterpret_cast<float4*>(&shared[warp][Piece::column(lane, k)]) = {
          sums[t][k], sums[t][k + 1], sums[t][k + 2], sums[t][k + 3]};
    __syncthreads();
    float total = 0.f;
    for (int w = 0; w < WARPS; ++w) total += shared[w][threadIdx.x];
    totals[t] += total;
    __syncthreads();
  }
}

template <int TOKENS, class Piece>
static __device__ __forceinline__ void add_all(const Rows& s, float (*shared)[WIDTH],
                                               float (&totals)[TOKENS]) {
  const int splits = splits_of(s.neurons);
  const bool alone = gridDim.y == 1;
  const int last = alone ? splits : blockIdx.y + 1;
  for (int split = alone ? 0 : blockIdx.y; split < last; ++split) {
    float sums[TOKENS][COLUMNS] = {};
    const int strand = split * WARPS + threadIdx.x / WARP;
    add_strand<TOKENS, Piece>(s, strand, splits * WARPS, blockIdx.x * WIDTH, sums);
    add_warps<TOKENS, Piece>(sums, s.tokens, shared, totals);
  }
}

template <int TOKENS>
static __device__ __forceinline__ void multiply(Rows s, int all_tokens, float (*shared)[WIDTH],
                                                float* __restrict__ scratch,
                                                float* __restrict__ out) {
  s.first = blockIdx.z * TOKENS;
  s.tokens = min(TOKENS, all_tokens - s.first);
  float totals[TOKENS] = {};
  using Piece = Pieces<FORMAT>;
  bool plain = true;
  if constexpr (Piece::ALIGNED > 0) {
    const uint64_t begins = reinterpret_cast<uint64_t>(s.weight) | s.stride;
    plain = begins % Piece::ALIGNED || s.hidden % COLUMNS;
    if (!plain) add_all<TOKENS, Piece>(s, shared, totals);
  }
  if (plain) add_all<TOKENS, Plain>(s, shared, totals);
  const int column = blockIdx.x * WIDTH + threadIdx.x;
  if (column >= s.hidden) return;
  const bool alone = gridDim.y == 1;
  float* const sums = alone ? out : scratch + static_cast<size_t>(blockIdx.y) * all_tokens * s.hidden;
#pragma unroll
  for (int t = 0; t < TOKENS; ++t)
    if (t < s.tokens) sums[static_cast<size_t>(s.first + t) * s.hidden + column] = totals[t];
}

// Resident thread blocks: dequantising element by element needs more registers.
constexpr int RESIDENT = Pieces<FORMAT>::ALIGNED ? 2 : 1;

#define SPARSE_AXPY(TOKENS)                                                                       \
  extern "C" __global__ void __launch_bounds__(WIDTH, RESIDENT) sparse_axpy_##TOKENS(             \
      const float* __restrict__ a, const uint8_t* __restrict__ weight,                            \
      const int* __restrict__ rows, const int* __restrict__ count, const int* __restrict__ slots, \
      float* __restrict__ scratch, float* __restrict__ out, int tokens, int neurons, int held,    \
      int stride, int hidden) {                                                                   \
    __shared__ float shared[WARPS][WIDTH];                                                        \
    const size_t apart = stride;                                                                  \
    multiply<TOKENS>({a, weight, rows, slots, apart, *count, neurons, hidden, 0, 0}, tokens,      \
                     shared, scratch, out);                                                       \
  }

SPARSE_AXPY(1)
SPARSE_AXPY(4)
