// Asynchronous copies from global to shared memory (cp.async), and matrix loads from there to
// tensor core fragments (ldmatrix).
#pragma once
#include "portable.cuh"

template <class T>
static __device__ __forceinline__ const T& at(const uint8_t* row, int index) {
  return reinterpret_cast<const T*>(row)[index];
}

// Asynchronous copy of a word to shared memory (cp.async), complete after `await_copies`.
template <class Word>
static __device__ __forceinline__ void copy_async(Word* to, const Word* from) {
#if !defined(HOST) && __CUDA_ARCH__ >= 800
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to));
  if constexpr (sizeof(Word) == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
  else if constexpr (sizeof(Word) == 8)
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(address), "l"(from) : "memory");
  else if constexpr (sizeof(Word) == 4)
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(address), "l"(from) : "memory");
  else
    *to = *from;
#else
  *to = *from;
#endif
}

// The same of 16 bytes through the first cache, for what other blocks of a multiprocessor read, too.
static __device__ __forceinline__ void copy_async_cached(uint32_t* to, const uint32_t* from) {
#if !defined(HOST) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(
                   static_cast<unsigned>(__cvta_generic_to_shared(to))),
               "l"(from)
               : "memory");
#else
  *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
#endif
}

// Predicated asynchronous copy of 16 bytes: zeros unless `some`.
static __device__ __forceinline__ void copy_async_or_zero(uint4* to, const uint4* from, bool some) {
#if !defined(HOST) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                   static_cast<unsigned>(__cvta_generic_to_shared(to))),
               "l"(from), "r"(some ? 16 : 0)
               : "memory");
#else
  *to = some ? *from : uint4{0, 0, 0, 0};
#endif
}

static __device__ __forceinline__ void commit_group() {
#if !defined(HOST) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits for all of this thread's copies but those of the last LATER groups.
template <int LATER>
static __device__ __forceinline__ void await_copies() {
#if !defined(HOST) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(LATER) : "memory");
#endif
}

// ldmatrix.x4: four matrices of 8 rows of 16 bytes. Lane 8i + j gives the offset of row j of matrix
// i from `base`, and gets word t of row g (g = lane / 4, t = lane % 4) of each.
static __device__ __forceinline__ void load_matrices(uint32_t (&to)[4], const uint8_t* base,
                                                     unsigned begins) {
#ifdef HOST
  const Lanes rows(begins);
  const int lane = threadIdx.x % WARP;
  for (int i = 0; i < 4; ++i) to[i] = at<uint32_t>(base + rows[8 * i + lane / 4], lane % 4);
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(static_cast<unsigned>(__cvta_generic_to_shared(base + begins)))
               : "memory");
#endif
}
