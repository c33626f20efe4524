// Rows of a KV cache: dequantisation, and asynchronous copies to shared memory.
#pragma once
#include "formats.cuh"
#include "staging.cuh"

// Element e of a row; quantised blocks may be unaligned.
template <class Cache>
static __device__ __forceinline__ float element_of(const uint8_t* row, int e) {
  if constexpr (Cache::BLOCK > 1)
    return Cache::element(row + e / Cache::BLOCK * Cache::BYTES, e % Cache::BLOCK);
  else if constexpr (Cache::BYTES == 4)
    return at<float>(row, e);
  else
    return to_float(at<half_t>(row, e));
}

// Dequantises 2, 4 or 8 elements of a row from e on, a multiple of their count, without rounding.
// Rows are aligned to 16 bytes (floats) or 4 (blocks).
static __device__ __forceinline__ void decode(f32, const uint8_t* row, int e, float (&x)[2]) {
  const float2 two = at<float2>(row, e / 2);
  x[0] = two.x, x[1] = two.y;
}

static __device__ __forceinline__ void decode(f32, const uint8_t* row, int e, float (&x)[4]) {
  const float4 four = at<float4>(row, e / 4);
  x[0] = four.x, x[1] = four.y, x[2] = four.z, x[3] = four.w;
}

static __device__ __forceinline__ void decode(f32, const uint8_t* row, int e, float (&x)[8]) {
  const float4 low = at<float4>(row, e / 4), high = at<float4>(row, e / 4 + 1);
  x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w;
  x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
}

static __device__ __forceinline__ void unpack(unsigned both, float* x) {
  x[0] = to_float(half_t{static_cast<uint16_t>(both)});
  x[1] = to_float(half_t{static_cast<uint16_t>(both >> 16)});
}

static __device__ __forceinline__ void decode(f16, const uint8_t* row, int e, float (&x)[2]) {
  unpack(at<unsigned>(row, e / 2), x);
}

static __device__ __forceinline__ void decode(f16, const uint8_t* row, int e, float (&x)[4]) {
  const uint2 words = at<uint2>(row, e / 4);
  unpack(words.x, x), unpack(words.y, x + 2);
}

static __device__ __forceinline__ void decode(f16, const uint8_t* row, int e, float (&x)[8]) {
  const uint4 words = at<uint4>(row, e / 8);
  unpack(words.x, x), unpack(words.y, x + 2), unpack(words.z, x + 4), unpack(words.w, x + 6);
}

// Blocks of a float16 scale, then int8 codes.
template <int N>
static __device__ __forceinline__ void decode(q8_0, const uint8_t* row, int e, float (&x)[N]) {
  const uint8_t* const block = row + e / 32 * q8_0::BYTES;
  const float scale = to_float(at<half_t>(block, 0));
#pragma unroll
  for (int i = 0; i < N; i += 2) {
    const uint16_t steps = at<uint16_t>(block + 2, (e % 32 + i) / 2);
    x[i] = scale * static_cast<int8_t>(steps);
    x[i + 1] = scale * static_cast<int8_t>(steps >> 8);
  }
}

// Blocks of a float16 scale, then nibbles with zero point 8; elements 16 to 31 are the high ones.
template <int N>
static __device__ __forceinline__ void decode(q4_0, const uint8_t* row, int e, float (&x)[N]) {
  const uint8_t* const block = row + e / 32 * q4_0::BYTES;
  const float scale = to_float(at<half_t>(block, 0));
  const int shift = e % 32 / 16 * 4;
#pragma unroll
  for (int i = 0; i < N; i += 2) {
    const int steps = at<uint16_t>(block + 2, (e % 16 + i) / 2) >> shift;
    x[i] = scale * ((steps & 15) - 8);
    x[i + 1] = scale * ((steps >> 8 & 15) - 8);
  }
}

// Bytes of a head in a cell's row, and the row stride in shared memory, padded so that lanes read
// the same element of adjacent rows without bank conflicts.
template <class Cache>
static __device__ __forceinline__ int head_bytes(int head_dim) {
  return head_dim / Cache::BLOCK * Cache::BYTES;
}

template <class Cache>
static __device__ __forceinline__ int stride_of(int head_dim) {
  const int bytes = head_bytes<Cache>(head_dim);
  return Cache::BLOCK == 1 ? bytes + 16 : ((bytes + 3) / 4 | 1) * 4;
}

// Copies a word of every `step`th of `count` rows, from `first` on, to shared memory (cp.async).
// `to` and `from` point to row 0. Four row indices are loaded at a time to overlap their latency.
template <class Word>
static __device__ __forceinline__ void load_column(uint8_t* to, int stride, const uint8_t* from,
                                                    size_t row_bytes, const int* rows, int first,
                                                    int step, int count) {
  constexpr int FOUR = 4;
#pragma unroll 1
  for (int c = first; c < count; c += FOUR * step) {
    uint32_t own[FOUR];
#pragma unroll
    for (int j = 0; j < FOUR; ++j) own[j] = rows[min(c + j * step, count - 1)];
#pragma unroll
    for (int j = 0; j < FOUR; ++j)
      if (const int row = c + j * step; row < count)
        copy_async(reinterpret_cast<Word*>(to + row * stride),
                   reinterpret_cast<const Word*>(
                       from + uint64_t(own[j]) * static_cast<uint32_t>(row_bytes)));
  }
}

template <class Word>
static __device__ __forceinline__ void stage_words(uint8_t* stage, int stride, const uint8_t* from,
                                                   size_t row_bytes, const int* cells, int count,
                                                   int bytes) {
  const int words = bytes / static_cast<int>(sizeof(Word));
  int bits = 5;  // log2 of the lanes per row: a warp copies several short rows at once
  while (bits > 0 && 1 << (bits - 1) >= words) --bits;
  const int lanes = 1 << bits, rows = static_cast<int>(blockDim.x) >> bits;
#pragma unroll 1
  for (int w = threadIdx.x & (lanes - 1); w < words; w += lanes) {
    const int at = w * static_cast<int>(sizeof(Word));
    load_column<Word>(stage + at, stride, from + at, row_bytes, cells, threadIdx.x >> bits, rows,
                       count);
  }
  commit_group();
}

// Starts the copy of `count` cells' rows, of each the head that `from` points to.
template <class Cache>
static __device__ __forceinline__ void fetch(uint8_t* stage, const uint8_t* from, size_t row_bytes,
                                             const int* cells, int count, int head_dim) {
  const int bytes = head_bytes<Cache>(head_dim), stride = stride_of<Cache>(head_dim);
  if constexpr (Cache::BLOCK == 1)
    stage_words<uint4>(stage, stride, from, row_bytes, cells, count, bytes);
  else if (bytes % 4 == 0)
    stage_words<unsigned>(stage, stride, from, row_bytes, cells, count, bytes);
  else
    stage_words<uint16_t>(stage, stride, from, row_bytes, cells, count, bytes);
}
