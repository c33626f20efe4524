// Common code of kernels in C: a thread's share of the work, and conversion of number formats. The
// argument struct `Block` (kernels/cpu/runtime/share.py) is generated from the op's signature.
#include <math.h>
#include <stdint.h>
#include <string.h>

#define SHARE void share(const Block *b, int64_t thread, int64_t n_threads)
// This thread's contiguous range of `count` items.
#define EACH(i, count)                                                                          \
    for (int64_t i = (count) * thread / n_threads; i < (count) * (thread + 1) / n_threads; i++)

static inline float from_half(const uint8_t *at) {
    const uint32_t bits = at[0] | at[1] << 8, exponent = bits >> 10 & 31, low = bits & 1023;
    float size = exponent == 31 ? (low ? NAN : INFINITY)
                                : ldexpf(exponent ? 1024 + low : low, exponent ? exponent - 25 : -24);
    return bits >> 15 ? -size : size;
}

static inline void to_half(float x, uint8_t *at) {
    uint32_t bits, half;
    memcpy(&bits, &x, 4);
    const uint32_t size = bits & 0x7fffffff;
    if (size > 0x7f800000) half = 0x7e00 | (size >> 13 & 0x3ff);
    else if (size >= 0x477ff000) half = 0x7c00;
    else if (size < 0x38800000) half = (uint32_t)rint(ldexp(fabs(x), 24));
    else half = (size - 0x38000000 + 0xfff + (size >> 13 & 1)) >> 13;
    half |= bits >> 16 & 0x8000;
    at[0] = half & 255, at[1] = half >> 8;
}

// Dequantises element i of a row.
#if defined F16
#define BYTES(n) ((n) * 2)
static inline float element(const uint8_t *row, int64_t i) { return from_half(row + 2 * i); }
static inline void put(uint8_t *row, int64_t i, float x) { to_half(x, row + 2 * i); }
#elif defined Q8_0
#define BYTES(n) ((n) / 32 * 34)
static inline float element(const uint8_t *row, int64_t i) {
    const uint8_t *block = row + i / 32 * 34;
    return from_half(block) * (int8_t)block[2 + i % 32];
}
#else
#define BYTES(n) ((n) * 4)
static inline float element(const uint8_t *row, int64_t i) {
    float x;
    memcpy(&x, row + 4 * i, 4);
    return x;
}
static inline void put(uint8_t *row, int64_t i, float x) { memcpy(row + 4 * i, &x, 4); }
#endif
