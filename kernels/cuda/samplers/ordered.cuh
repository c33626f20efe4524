// Logits and ids as 64-bit keys in the order of choice: larger logits first, ties (as of both
// zeros) by lowest id.
#pragma once
#include "portable.cuh"

static __device__ __forceinline__ uint64_t key_of(float logit, int id) {
  const uint32_t bits = __float_as_uint(logit + 0.f);
  const uint32_t ordered = bits >> 31 ? ~bits : bits | 0x80000000u;
  return static_cast<uint64_t>(ordered) << 32 | ~static_cast<uint32_t>(id);
}

static __device__ __forceinline__ int id_of(uint64_t key) {
  return static_cast<int>(~static_cast<uint32_t>(key));
}

static __device__ __forceinline__ float logit_of(uint64_t key) {
  const uint32_t ordered = static_cast<uint32_t>(key >> 32);
  return __uint_as_float(ordered >> 31 ? ordered & 0x7fffffffu : ~ordered);
}
