// Compacts the keys or values that a head keeps, in place.
#include "formats.cuh"

constexpr int EACH = 4;  // words in flight per thread

// Moves from the last slot down: each source is at the same slot as its target or an earlier one,
// so words read before the barrier may be overwritten after it, and those of earlier slots are
// still unchanged.
template <class Word>
static __device__ __forceinline__ void move(const int* __restrict__ slots,
                                            const int* __restrict__ cells,
                                            const int* __restrict__ into, uint8_t* out,
                                            size_t row_bytes, int bytes, int kept) {
  const int words = bytes / static_cast<int>(sizeof(Word));
  for (int64_t end = static_cast<int64_t>(kept) * words; end > 0; end -= blockDim.x * EACH) {
    Word own[EACH];
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
      const int64_t i = end - 1 - threadIdx.x - e * blockDim.x;
      if (i < 0) continue;
      const uint8_t* const row = out + cells[slots[i / words]] * row_bytes;
      own[e] = reinterpret_cast<const Word*>(row)[i % words];
    }
    __syncthreads();
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
      const int64_t i = end - 1 - threadIdx.x - e * blockDim.x;
      if (i < 0) continue;
      reinterpret_cast<Word*>(out + into[i / words] * row_bytes)[i % words] = own[e];
    }
  }
}

// One thread block per head, with the widest word that divides the head's bytes.
extern "C" __global__ void __launch_bounds__(256)
    kv_keep(const int* __restrict__ slots, const int* __restrict__ cells,
            const int* __restrict__ into, uint8_t* __restrict__ out, int kv_heads, int kept,
            int held, int capacity, int head_dim) {
  const int bytes = head_dim / FORMAT::BLOCK * FORMAT::BYTES;
  const size_t row_bytes = static_cast<size_t>(kv_heads) * bytes;
  const int* const own = slots + static_cast<size_t>(blockIdx.x) * kept;
  uint8_t* const head = out + static_cast<size_t>(blockIdx.x) * bytes;
  if (bytes % 16 == 0)
    move<uint4>(own, cells, into, head, row_bytes, bytes, kept);
  else if (bytes % 4 == 0)
    move<uint32_t>(own, cells, into, head, row_bytes, bytes, kept);
  else
    move<uint16_t>(own, cells, into, head, row_bytes, bytes, kept);
}
