// Block-format weights in packing.py's layout: bit planes of blocks of 32 elements.
#pragma once
#include "portable.cuh"

constexpr int BLOCK = 32;

// Coding of a format: element = d * (part's integer scale) * (code - zero_point), plus m, or minus
// m * (part's minimum).
struct Coding {
  static constexpr int low = 4, high = 0;  // bits of a code in the two planes
  static constexpr int zero_point = 0;         // of codes
  static constexpr int blocks = 1;         // of a superblock, which share d and m
  static constexpr int parts = 1;          // sub-blocks of a block
  static constexpr bool integer_scales = false, m = false, mins = false;
  static constexpr bool packed_scales = false;    // scale and minimum share a byte
  static constexpr bool table = false;     // codes index values_*, four to a word
  static constexpr uint32_t values_0 = 0, values_1 = 0, values_2 = 0, values_3 = 0;
  static constexpr bool power = false;     // d is 2^(byte - 128)
  static constexpr float factor = 1.f;     // of d
  static constexpr int at_once = 6;        // resident thread blocks (linear.cuh)
};
struct q8_0 : Coding {
  static constexpr int low = 8;
};
struct q4_0 : Coding {
  static constexpr int zero_point = 8;
  static constexpr int at_once = 5;  // with fewer registers it would spill
};
struct q4_1 : Coding {
  static constexpr bool m = true;
  static constexpr int at_once = 4;
};
struct q5_0 : Coding {
  static constexpr int high = 1, zero_point = 16;
  static constexpr int at_once = 5;
};
struct q5_1 : q4_1 {
  static constexpr int high = 1;
};
struct q2_k : Coding {
  static constexpr int low = 2, blocks = 8, parts = 2;
  static constexpr bool integer_scales = true, m = true, mins = true, packed_scales = true;
};
struct q3_k : Coding {
  static constexpr int low = 2, high = 1, zero_point = 4, blocks = 8, parts = 2;
  static constexpr bool integer_scales = true;
};
struct q4_k : Coding {
  static constexpr int blocks = 8;
  static constexpr bool integer_scales = true, m = true, mins = true;
};
struct q5_k : q4_k {
  static constexpr int high = 1;
  static constexpr int at_once = 4;
};
struct q6_k : Coding {
  static constexpr int high = 2, zero_point = 32, blocks = 8, parts = 2;
  static constexpr bool integer_scales = true;
};
struct iq4_nl : Coding {
  static constexpr bool table = true;
  static constexpr uint32_t values_0 = 0xbfad9881, values_1 = 0xf6eaddcf, values_2 = 0x26190d01,
                            values_3 = 0x71594535;
};
struct iq4_xs : iq4_nl {
  static constexpr int at_once = 5;
  static constexpr int blocks = 8;
  static constexpr bool integer_scales = true;
};
struct mxfp4 : Coding {
  static constexpr bool table = true, power = true;
  static constexpr uint32_t values_0 = 0x03020100, values_1 = 0x0c080604, values_2 = 0xfdfeff00,
                            values_3 = 0xf4f8fafc;
};
struct tq2_0 : Coding {
  static constexpr int at_once = 4;
  static constexpr int low = 2, zero_point = 1, blocks = 8;
};
struct tq1_0 : tq2_0 {};
struct iq1_s : Coding {
  static constexpr int at_once = 4;
  static constexpr int low = 8, blocks = 8;
  static constexpr bool integer_scales = true;
  static constexpr float factor = 0.125f;
};
struct iq1_m : iq1_s {
  static constexpr int parts = 2;
};
struct iq2_xxs : iq1_s {};
struct iq2_xs : iq1_m {};
struct iq2_s : iq1_m {};
struct iq3_xxs : iq1_s {};
struct iq3_s : iq1_s {};

// A block's packed words.
template <class F>
struct Packed {
  uint32_t low[F::low], high[F::high + !F::high];
  uint32_t integers, d;
};

// Pointers to the planes and scales of a weight of n blocks.
template <class F>
struct Weight {
  static constexpr int BYTES = F::parts * (F::integer_scales + (F::mins && !F::packed_scales));
  static constexpr int SCALES = F::power ? 1 : 2 * (1 + F::m);
  const uint32_t *low, *high;
  const uint8_t *integers, *d;

  __device__ __forceinline__ static size_t aligned(size_t bytes) {
    return (bytes + 15) / 16 * 16;
  }

  __device__ __forceinline__ Weight(const uint8_t* packed, size_t n) {
    const uint8_t* const bits = packed + aligned(n * 4 * F::low);
    low = reinterpret_cast<const uint32_t*>(packed);
    high = reinterpret_cast<const uint32_t*>(bits);
    integers = bits + aligned(n * 4 * F::high);
    d = integers + aligned(n * BYTES);
  }

  __device__ __forceinline__ Packed<F> load(size_t block) const {
    Packed<F> found{};
    load_words<F::low>(low + block * F::low, found.low);
    load_words<F::high>(high + block * F::high, found.high);
    if constexpr (BYTES == 1) found.integers = integers[block];
    if constexpr (BYTES == 2)
      found.integers = reinterpret_cast<const uint16_t*>(integers)[block];
    const size_t unit = block / F::blocks;
    if constexpr (SCALES == 1) found.d = d[unit];
    if constexpr (SCALES == 2) found.d = reinterpret_cast<const uint16_t*>(d)[unit];
    if constexpr (SCALES == 4) found.d = reinterpret_cast<const uint32_t*>(d)[unit];
    return found;
  }
};

// Table lookup of a word's nibbles: the low ones' values, then the high ones'.
template <class F>
static __device__ __forceinline__ void load_cells(uint32_t word, uint32_t& lower, uint32_t& upper) {
  // three bits select a byte in each half of the table, the fourth bit selects the half
  const uint32_t halves = 0x32103210u | (word & 0x88888888u) >> 1;
  uint32_t found[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t choice = word >> 16 * i & 0x7777u;
    const uint32_t first = __byte_perm(F::values_0, F::values_1, choice);
    const uint32_t second = __byte_perm(F::values_2, F::values_3, choice);
    found[i] = __byte_perm(first, second, halves >> 16 * i);
  }
  lower = __byte_perm(found[0], found[1], 0x6420);
  upper = __byte_perm(found[0], found[1], 0x7531);
}

// Unpacks a block's codes, four to a word in element order.
template <class F>
static __device__ __forceinline__ void unpack(const Packed<F>& block, uint32_t (&codes)[8]) {
  if constexpr (F::table) {
#pragma unroll
    for (int c = 0; c < 4; ++c) load_cells<F>(block.low[c], codes[c], codes[c + 4]);
  } else {
    constexpr uint32_t each = 0x01010101u;
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      codes[c] = block.low[c % F::low] >> F::low * (c / F::low);
      if constexpr (F::low < 8) codes[c] &= ((1u << F::low) - 1) * each;
      if constexpr (F::high > 0) {
        const uint32_t bits = block.high[c % F::high] >> F::high * (c / F::high);
        codes[c] |= (bits & ((1u << F::high) - 1) * each) << F::low;
      }
    }
  }
}

// Unpacks words t and t + 4 (t < 4) of a block's codes from the planes' words with their bits:
// word t % bits of a plane of fewer than eight bits.
template <class F>
static __device__ __forceinline__ void unpack_two(uint32_t low, uint32_t high, int t,
                                                  uint32_t& first, uint32_t& second) {
  const auto bits = [t](uint32_t word, int each, uint32_t& lower, uint32_t& upper) {
    const uint32_t mask = ((1u << each) - 1) * 0x01010101u;
    if (each < 4) word >>= each * (t / each);
    lower = word & mask;
    upper = word >> 4 & mask;
  };
  if constexpr (F::table)
    load_cells<F>(low, first, second);
  else
    bits(low, F::low, first, second);
  if constexpr (F::high > 0) {
    uint32_t lower, upper;
    bits(high, F::high, lower, upper);
    first |= lower << F::low;
    second |= upper << F::low;
  }
}

// Subtracts the zero point from four codes; setting their top bits prevents borrows between bytes.
template <class F>
static __device__ __forceinline__ uint32_t lowered(uint32_t codes) {
  if constexpr (F::zero_point == 0) return codes;
  return ((codes | 0x80808080u) - F::zero_point * 0x01010101u) ^ 0x80808080u;
}

// Factors of a block's codes (w) and of the sums of its activations (m), by part.
template <class F>
struct Factors {
  float w[F::parts], m[F::parts];
};

template <class F>
static __device__ __forceinline__ Factors<F> factors(const Packed<F>& block) {
  Factors<F> found{};
  float d, m = 0.f;
  if constexpr (F::power)  // subnormal below two
    d = __uint_as_float(block.d < 2 ? 0x00200000u << block.d : (block.d - 1) << 23);
  else
    d = to_float(half_t{static_cast<uint16_t>(block.d)}) * F::factor;
  if constexpr (F::m) m = to_float(half_t{static_cast<uint16_t>(block.d >> 16)});
#pragma unroll
  for (int p = 0; p < F::parts; ++p) {
    const uint32_t byte = block.integers >> 8 * p & 255;
    const int integer = F::packed_scales ? byte & 15 : static_cast<int8_t>(byte);
    const int minimum = F::packed_scales ? byte >> 4 : block.integers >> 8;
    found.w[p] = F::integer_scales ? d * integer : d;
    found.m[p] = F::mins ? -m * minimum : m;
  }
  return found;
}
