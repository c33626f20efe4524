// CUDA's built-ins for a C++ compiler: a kernel's threads run as fibers (host.cpp), and memory
// accesses are checked through the compiler's instrumentation.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#define HOST 1
#define __global__ inline  // compiles only the kernel that is called
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __restrict__
#define __launch_bounds__(...)
#define __constant__ static const
#define __align__(n) __attribute__((aligned(n)))
#define __shared__ static __attribute__((section("kernel_shared"), aligned(16)))
#define HIDDEN __attribute__((no_sanitize("thread"))) inline

struct dim3 {
  unsigned x, y, z;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) int2 {
  int x, y;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};

namespace host {
// A source line.
struct Site {
  const char* file;
  int line;
  bool operator==(const Site& other) const {
    return line == other.line && !strcmp(file, other.file);
  }
};
#define SITE (host::Site{__FILE_NAME__, __LINE__})

// Built-in variables of the running thread.
dim3 thread_index();
dim3 block_index();
dim3 block_dim();
dim3 grid_dim();
void* dynamic_shared();

void barrier(Site site);

// Warp-level exchange: leaves a value, waits for all of `lanes`; `left_by` then returns a lane's.
// With `joins` it is also a memory barrier among them (__syncwarp).
void leave(uint32_t lanes, uint64_t value, Site site, bool joins = false);
uint64_t left_by(unsigned lane);
unsigned lane();

// griddepcontrol.wait: under programmatic dependent launch, required before a thread writes global
// memory or reads any that kernels write.
void await_previous();

// Checks an atomic access, which does not race with other atomics.
void* atomic(void* address, size_t size, Site site);

float half_to_float(uint16_t bits);
uint16_t float_to_half(float x);

template <class T>
HIDDEN T shuffle(uint32_t lanes, T value, unsigned source, Site site) {
  static_assert(sizeof(T) <= 8);
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof(T));
  leave(lanes, bits, site);
  bits = left_by(source);
  memcpy(&value, &bits, sizeof(T));
  return value;
}

HIDDEN unsigned ballot(uint32_t lanes, bool vote, Site site) {
  leave(lanes, vote, site);
  unsigned found = 0;
  for (unsigned i = 0; i < 32; ++i)
    if (lanes >> i & 1) found |= static_cast<unsigned>(left_by(i) != 0) << i;
  return found;
}

template <class T>
HIDDEN unsigned match(uint32_t lanes, T value, Site site) {
  static_assert(sizeof(T) <= 8);
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof(T));
  leave(lanes, bits, site);
  unsigned found = 0;
  for (unsigned i = 0; i < 32; ++i)
    if (lanes >> i & 1) found |= static_cast<unsigned>(left_by(i) == bits) << i;
  return found;
}

// A value of each lane of a warp.
struct Lanes {
  uint32_t words[32];
  HIDDEN explicit Lanes(uint32_t word) {
    leave(0xffffffffu, word, SITE);
    for (unsigned i = 0; i < 32; ++i) words[i] = static_cast<uint32_t>(left_by(i));
  }
  HIDDEN uint32_t operator[](int lane) const { return words[lane]; }
};

template <class T, class Change>
HIDDEN T changed(T* address, Site site, Change change) {
  T* const memory = static_cast<T*>(atomic(address, sizeof(T), site));
  const T before = *memory;
  *memory = change(before);
  return before;
}

template <class T>
HIDDEN T add(T* address, std::type_identity_t<T> value, Site site) {
  return changed(address, site, [=](T before) { return before + value; });
}

template <class T>
HIDDEN T maximum(T* address, std::type_identity_t<T> value, Site site) {
  return changed(address, site, [=](T before) { return before < value ? value : before; });
}

template <class T>
HIDDEN T minimum(T* address, std::type_identity_t<T> value, Site site) {
  return changed(address, site, [=](T before) { return value < before ? value : before; });
}

template <class T>
HIDDEN T exchange(T* address, std::type_identity_t<T> expected, std::type_identity_t<T> value,
                  Site site) {
  return changed(address, site, [=](T before) { return before == expected ? value : before; });
}
}  // namespace host

#define threadIdx (host::thread_index())
#define blockIdx (host::block_index())
#define blockDim (host::block_dim())
#define gridDim (host::grid_dim())
#define DYNAMIC_SHARED(type, name) type* const name = static_cast<type*>(host::dynamic_shared())

#define __syncthreads() host::barrier(SITE)
#define __syncwarp(...) host::leave(0xffffffffu __VA_OPT__(&(__VA_ARGS__)), 0, SITE, true)
#define __shfl_sync(lanes, value, from) host::shuffle(lanes, value, (from) & 31, SITE)
#define __shfl_xor_sync(lanes, value, with) \
  host::shuffle(lanes, value, host::lane() ^ (with), SITE)
#define __shfl_down_sync(lanes, value, by) \
  host::shuffle(lanes, value, host::lane() + (by) > 31 ? host::lane() : host::lane() + (by), SITE)
#define __shfl_up_sync(lanes, value, by) \
  host::shuffle(lanes, value, host::lane() < (by) ? host::lane() : host::lane() - (by), SITE)
#define __ballot_sync(lanes, vote) host::ballot(lanes, vote, SITE)
#define __any_sync(lanes, vote) (host::ballot(lanes, vote, SITE) != 0)
#define __all_sync(lanes, vote) (host::ballot(lanes, !(vote), SITE) == 0)
#define __match_any_sync(lanes, value) host::match(lanes, value, SITE)

#define atomicAdd(address, value) host::add(address, value, SITE)
#define atomicMax(address, value) host::maximum(address, value, SITE)
#define atomicMin(address, value) host::minimum(address, value, SITE)
#define atomicCAS(address, expected, value) host::exchange(address, expected, value, SITE)

template <class T>
inline T __ldg(const T* address) {
  return *address;
}
inline void __threadfence() {}
inline void __threadfence_block() {}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __clz(int x) { return x ? __builtin_clz(static_cast<unsigned>(x)) : 32; }
inline float __uint_as_float(unsigned x) {
  float y;
  memcpy(&y, &x, 4);
  return y;
}
inline float __int_as_float(int x) { return __uint_as_float(static_cast<unsigned>(x)); }
inline unsigned __float_as_uint(float x) {
  unsigned y;
  memcpy(&y, &x, 4);
  return y;
}
inline int __float_as_int(float x) { return static_cast<int>(__float_as_uint(x)); }
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned choice) {
  const uint64_t bytes = uint64_t{high} << 32 | low;
  unsigned found = 0;
  for (int i = 0; i < 4; ++i)
    found |= static_cast<unsigned>(bytes >> 8 * (choice >> 4 * i & 7) & 255) << 8 * i;
  return found;
}
inline float rsqrtf(float x) { return 1.f / sqrtf(x); }
inline float __expf(float x) { return expf(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fsub_rn(float x, float y) { return x - y; }
inline float __frcp_rn(float x) { return 1.f / x; }
inline int __float2int_rn(float x) { return static_cast<int>(nearbyintf(x)); }
inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a < b ? b : a; }
inline unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
inline unsigned max(unsigned a, unsigned b) { return a < b ? b : a; }
