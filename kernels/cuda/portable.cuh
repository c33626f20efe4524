// Types, intrinsics and reductions of kernels for a GPU or, with HOST, as C++ for the CPU.
#pragma once

#ifndef HOST
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;

#define INFINITY __int_as_float(0x7f800000)

// Dynamic shared memory, sized at launch.
#define DYNAMIC_SHARED(type, name)           \
  extern __shared__ uint4 dynamic_shared_[]; \
  type* const name = reinterpret_cast<type*>(dynamic_shared_)
#endif

constexpr int WARP = 32;
constexpr uint32_t ALL = 0xffffffffu;

// Programmatic dependent launch: the next kernel may start now, as soon as resources are free.
static __device__ __forceinline__ void launch_dependents() {
#if !defined(HOST) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// Programmatic dependent launch: waits for the previous kernel's writes, then lets the next one
// start, unless it has been let. A kernel whose threads all call this, and before it read nothing
// but weights, may start before the previous one ends (Launch.waits). If the next may start before
// the wait, so may those after it, and their thread blocks crowd out this kernel's.
template <bool LET_NEXT = true>
static __device__ __forceinline__ void wait_for_previous() {
#ifdef HOST
  host::await_previous();
#elif __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  if constexpr (LET_NEXT) launch_dependents();
#endif
}

// 16-bit floats, as bits; PARTS: how many of them split a float32 (split.cuh).
struct half_t {
  static constexpr int PARTS = 2;
  uint16_t bits;
};
struct bfloat_t {
  static constexpr int PARTS = 3;
  uint16_t bits;
};

static __device__ __forceinline__ float to_float(float x) { return x; }

static __device__ __forceinline__ float to_float(bfloat_t x) {
  return __uint_as_float(static_cast<uint32_t>(x.bits) << 16);
}

static __device__ __forceinline__ float to_float(half_t x) {
#ifdef HOST
  return host::half_to_float(x.bits);
#else
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
#endif
}

// Rounded to nearest, ties to even.
static __device__ __forceinline__ half_t to_half(float x) {
  half_t y;
#ifdef HOST
  y.bits = host::float_to_half(x);
#else
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
#endif
  return y;
}

// Rounded to nearest, ties to even; NaN stays NaN.
static __device__ __forceinline__ bfloat_t to_bfloat(float x) {
  const uint32_t bits = __float_as_uint(x);
  bfloat_t y;
  if ((bits & 0x7fffffffu) > 0x7f800000u)
    y.bits = static_cast<uint16_t>((bits >> 16) | 64);
  else
    y.bits = static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
  return y;
}

// Vectorized load of N words, aligned to their size (at most 16 bytes).
template <int N>
static __device__ __forceinline__ void load_words(const uint32_t* __restrict__ from,
                                                  uint32_t* to) {
  if constexpr (N == 8) {
    load_words<4>(from, to);
    load_words<4>(from + 4, to + 4);
  } else if constexpr (N == 4) {
    const uint4 v = *reinterpret_cast<const uint4*>(from);
    to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
  } else if constexpr (N == 2) {
    const uint2 v = *reinterpret_cast<const uint2*>(from);
    to[0] = v.x, to[1] = v.y;
  } else if constexpr (N == 1) {
    to[0] = *from;
  }
}

// Converts two floats: the first goes to the lower half.
static __device__ __forceinline__ uint32_t to_bfloats(float low, float high) {
#if defined(HOST) || __CUDA_ARCH__ < 800
  return to_bfloat(low).bits | static_cast<uint32_t>(to_bfloat(high).bits) << 16;
#else
  uint32_t both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
#endif
}

static __device__ __forceinline__ uint32_t to_halves(float low, float high) {
#if defined(HOST) || __CUDA_ARCH__ < 800
  return to_half(low).bits | static_cast<uint32_t>(to_half(high).bits) << 16;
#else
  uint32_t both;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
#endif
}

// c plus the dot product of four signed bytes (dp4a).
static __device__ __forceinline__ int dot4(int a, int b, int c) {
#ifdef HOST
  for (int i = 0; i < 32; i += 8)
    c += static_cast<int8_t>(static_cast<uint32_t>(a) >> i) *
         static_cast<int8_t>(static_cast<uint32_t>(b) >> i);
  return c;
#else
  return __dp4a(a, b, c);
#endif
}

// Warp shuffle reductions, with the same bits in every lane.
static __device__ __forceinline__ float warp_sum(float x) {
  for (int m = WARP / 2; m; m /= 2) x += __shfl_xor_sync(ALL, x, m);
  return x;
}

static __device__ __forceinline__ int warp_sum(int x) {
  for (int m = WARP / 2; m; m /= 2) x += __shfl_xor_sync(ALL, x, m);
  return x;
}

static __device__ __forceinline__ float warp_max(float x) {
  for (int m = WARP / 2; m; m /= 2) x = fmaxf(x, __shfl_xor_sync(ALL, x, m));
  return x;
}

// Reduction over a block of whole warps, for every thread; `partial` is shared memory of one
// element per warp, free for reuse on return.
template <class T, class Combine>
static __device__ __forceinline__ T block_reduce(T x, T* partial, Combine combine) {
  const int warps = blockDim.x / WARP;
  for (int m = WARP / 2; m; m /= 2) x = combine(x, __shfl_xor_sync(ALL, x, m));
  if (threadIdx.x % WARP == 0) partial[threadIdx.x / WARP] = x;
  __syncthreads();
  x = partial[0];
  for (int i = 1; i < warps; ++i) x = combine(x, partial[i]);
  __syncthreads();
  return x;
}

struct Sum {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};
struct Max {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

// A register of all lanes of a warp, read by lane index (warp shuffle).
#ifdef HOST
using Lanes = host::Lanes;
#else
struct Lanes {
  uint32_t own;
  __device__ explicit Lanes(uint32_t word) : own(word) {}
  __device__ uint32_t operator[](int lane) const { return __shfl_sync(ALL, own, lane); }
};
#endif

// Tensor cores (mma.sync): a warp computes c += a b, where a has 16 rows, b 8 columns, and a word
// is four int8 or two 16-bit floats along k. Fragments, with g = lane / 4 and t = lane % 4:
//   c: columns 2t and 2t + 1 of row g, then of row g + 8;
//   a: word t of row g, then of row g + 8; with eight words along k, also word t + 4 of both;
//   b: word t of column g; with eight words along k, also word t + 4.
#if defined(HOST) || __CUDA_ARCH__ < 800
template <int HALVES, class T, class Dot>
static __device__ __forceinline__ void mma_plain(T (&c)[4], const uint32_t* a, const uint32_t* b,
                                                 Dot dot) {
  const int lane = threadIdx.x % WARP, row = lane / 4 * 4, column = lane % 4 * 8;
#pragma unroll
  for (int h = 0; h < HALVES; ++h) {
    const Lanes upper(a[2 * h]), lower(a[2 * h + 1]), columns(b[h]);
#pragma unroll 1
    for (int t = 0; t < 4; ++t) {
      const uint32_t left = columns[column + t], right = columns[column + 4 + t];
      c[0] = dot(upper[row + t], left, c[0]);
      c[1] = dot(upper[row + t], right, c[1]);
      c[2] = dot(lower[row + t], left, c[2]);
      c[3] = dot(lower[row + t], right, c[3]);
    }
  }
}

struct DotOfBytes {
  __device__ int operator()(uint32_t a, uint32_t b, int c) const { return dot4(a, b, c); }
};
template <class Element>
struct DotOfTwo {
  __device__ float operator()(uint32_t a, uint32_t b, float c) const {
#pragma unroll
    for (int i = 0; i < 32; i += 16)
      c = fmaf(to_float(Element{static_cast<uint16_t>(a >> i)}),
               to_float(Element{static_cast<uint16_t>(b >> i)}), c);
    return c;
  }
};
#endif

#ifdef HOST
// As an H200 does: 16 products and c are added at once, aligned by the largest sum of two factors'
// exponents (that of a subnormal number or zero is the smallest normal one's), with 25 bits behind
// the point, and truncated like their sum.
template <class Element>
static void mma_truncated(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  const int lane = threadIdx.x % WARP, row = lane / 4 * 4, column = lane % 4 * 8;
  constexpr int LEAST = Element::PARTS == 3 ? -126 : -14;
  const auto exponent = [](float x, int least) { return x == 0.f ? least : max(ilogbf(x), least); };
  const Lanes of_a[4] = {Lanes(a[0]), Lanes(a[1]), Lanes(a[2]), Lanes(a[3])};
  const Lanes of_b[2] = {Lanes(b[0]), Lanes(b[1])};
  for (int e = 0; e < 4; ++e) {
    double products[16];
    int highest = exponent(c[e], -149);
    float plain = c[e];
    for (int k = 0; k < 16; ++k) {
      const int t = k % 8 / 2, shift = k % 2 * 16;
      const uint32_t left = of_a[k / 8 * 2 + e / 2][row + t];
      const uint32_t right = of_b[k / 8][column + e % 2 * 4 + t];
      const float x = to_float(Element{static_cast<uint16_t>(left >> shift)});
      const float y = to_float(Element{static_cast<uint16_t>(right >> shift)});
      products[k] = static_cast<double>(x) * y;
      plain = fmaf(x, y, plain);
      if (std::isfinite(x) && std::isfinite(y))
        highest = max(highest, exponent(x, LEAST) + exponent(y, LEAST));
    }
    if (!std::isfinite(plain)) {
      c[e] = plain;
      continue;
    }
    const auto kept = [&](double x) { return static_cast<int64_t>(ldexp(x, 25 - highest)); };
    int64_t sum = kept(c[e]);
    for (double product : products) sum += kept(product);
    const double exact = ldexp(static_cast<double>(sum), highest - 25);
    const float rounded = static_cast<float>(exact);
    c[e] = fabs(rounded) > fabs(exact) ? nextafterf(rounded, 0.f) : rounded;
  }
}
#endif

// int8, k = 16.
static __device__ __forceinline__ void mma_m16n8k16(int (&c)[4], const uint32_t (&a)[2],
                                                    const uint32_t (&b)[1]) {
#if defined(HOST) || __CUDA_ARCH__ < 800
  mma_plain<1>(c, a, b, DotOfBytes());
#else
  asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(b[0]));
#endif
}

// int8, k = 32.
static __device__ __forceinline__ void mma_m16n8k32(int (&c)[4], const uint32_t (&a)[4],
                                                    const uint32_t (&b)[2]) {
#if defined(HOST) || __CUDA_ARCH__ < 800
  mma_plain<2>(c, a, b, DotOfBytes());
#else
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

// half_t or bfloat_t, k = 16, accumulated in float32.
template <class Element = half_t>
static __device__ __forceinline__ void mma_m16n8k16(float (&c)[4], const uint32_t (&a)[4],
                                                    const uint32_t (&b)[2]) {
#if defined(HOST)
  mma_truncated<Element>(c, a, b);
#elif __CUDA_ARCH__ < 800
  mma_plain<2>(c, a, b, DotOfTwo<Element>());
#else
#define MMA(kind)                                                                          \
  asm("mma.sync.aligned.m16n8k16.row.col.f32." kind "." kind ".f32 {%0,%1,%2,%3}, "        \
      "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"                                             \
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                     \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
  if constexpr (Element::PARTS == 3)
    MMA("bf16");
  else
    MMA("f16");
#undef MMA
#endif
}
