/* nst_kernels.h - small inline functions that generated kernels call.
 *
 * Each states one scalar function of the loop IR whose meaning differs from the C operator or
 * library function of the same name.
 */
#ifndef NST_KERNELS_H
#define NST_KERNELS_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "nst.h"

#ifdef __cplusplus
extern "C" {
#endif

/* max and min that return NaN when either operand is NaN, as ONNX and NumPy do. */
#define NST_MINMAX_FLOAT(suffix, type)                                                          \
    static inline type nst_max_##suffix(type a, type b) { return (a < b || b != b) ? b : a; }    \
    static inline type nst_min_##suffix(type a, type b) { return (b < a || b != b) ? b : a; }
NST_MINMAX_FLOAT(float32, float)
NST_MINMAX_FLOAT(float64, double)
#undef NST_MINMAX_FLOAT

#define NST_MINMAX_INT(suffix, type)                                                  \
    static inline type nst_max_##suffix(type a, type b) { return a < b ? b : a; }      \
    static inline type nst_min_##suffix(type a, type b) { return b < a ? b : a; }
NST_MINMAX_INT(int8, int8_t)
NST_MINMAX_INT(int16, int16_t)
NST_MINMAX_INT(int32, int32_t)
NST_MINMAX_INT(int64, int64_t)
NST_MINMAX_INT(uint8, uint8_t)
NST_MINMAX_INT(uint16, uint16_t)
NST_MINMAX_INT(uint32, uint32_t)
NST_MINMAX_INT(uint64, uint64_t)
NST_MINMAX_INT(index, ptrdiff_t)
#undef NST_MINMAX_INT

/* Quotient rounded down and its remainder (0 for a zero divisor, which ONNX leaves undefined); truncated
 * quotient and remainder without the two traps of C, x / 0 and INT_MIN / -1; integer power by squaring. */
#define NST_DIVISION_SIGNED(suffix, type, utype)                                                 \
    static inline type nst_div_##suffix(type a, type b) {                                        \
        if (b == 0) return 0;                                                                    \
        if (b == -1) return (type)(utype)(0u - (utype)a);                                        \
        return (type)(a / b);                                                                    \
    }                                                                                            \
    static inline type nst_mod_##suffix(type a, type b) {                                        \
        return (b == 0 || b == -1) ? (type)0 : (type)(a % b);                                    \
    }                                                                                            \
    static inline type nst_floormod_##suffix(type a, type b) {                                   \
        type r = nst_mod_##suffix(a, b);                                                         \
        return (type)((r != 0 && ((r < 0) != (b < 0))) ? r + b : r);                             \
    }                                                                                            \
    static inline type nst_floordiv_##suffix(type a, type b) {                                   \
        type q = nst_div_##suffix(a, b);                                                         \
        type r = nst_mod_##suffix(a, b);                                                         \
        return (type)((r != 0 && ((r < 0) != (b < 0))) ? q - 1 : q);                             \
    }
#define NST_DIVISION_UNSIGNED(suffix, type)                                                      \
    static inline type nst_div_##suffix(type a, type b) { return b == 0u ? (type)0 : (type)(a / b); } \
    static inline type nst_mod_##suffix(type a, type b) { return b == 0u ? (type)0 : (type)(a % b); } \
    static inline type nst_floordiv_##suffix(type a, type b) { return nst_div_##suffix(a, b); }  \
    static inline type nst_floormod_##suffix(type a, type b) { return nst_mod_##suffix(a, b); }
NST_DIVISION_SIGNED(int8, int8_t, uint8_t)
NST_DIVISION_SIGNED(int16, int16_t, uint16_t)
NST_DIVISION_SIGNED(int32, int32_t, uint32_t)
NST_DIVISION_SIGNED(int64, int64_t, uint64_t)
NST_DIVISION_SIGNED(index, ptrdiff_t, size_t)
NST_DIVISION_UNSIGNED(uint8, uint8_t)
NST_DIVISION_UNSIGNED(uint16, uint16_t)
NST_DIVISION_UNSIGNED(uint32, uint32_t)
NST_DIVISION_UNSIGNED(uint64, uint64_t)
#undef NST_DIVISION_SIGNED
#undef NST_DIVISION_UNSIGNED

static inline float nst_floormod_float32(float a, float b) {
    float r = fmodf(a, b);
    return (r != 0.0f && ((r < 0.0f) != (b < 0.0f))) ? r + b : r;
}
static inline double nst_floormod_float64(double a, double b) {
    double r = fmod(a, b);
    return (r != 0.0 && ((r < 0.0) != (b < 0.0))) ? r + b : r;
}

/* a * 2**b and a / 2**b rounded down; a count outside 0..bits-1 shifts everything out.  |a|, wrapped. */
#define NST_SHIFT(suffix, type, wide, bits)                                                      \
    static inline type nst_shl_##suffix(type a, uint64_t b) {                                    \
        if (b >= bits) return 0;                                                                 \
        return (type)((wide)a << b);                                                             \
    }                                                                                            \
    static inline type nst_shr_##suffix(type a, uint64_t b) {                                    \
        if (b >= bits) return (type)(a < 1 ? (a >> (bits - 1u)) : 0);                            \
        return (type)(a >> b);                                                                   \
    }
#define NST_ABS(suffix, type, wide)                                                              \
    static inline type nst_abs_##suffix(type a) {                                                \
        if (a < 0) return (type)(0u - (wide)a);                                                  \
        return a;                                                                                \
    }
NST_SHIFT(int8, int8_t, uint32_t, 8u)
NST_SHIFT(int16, int16_t, uint32_t, 16u)
NST_SHIFT(int32, int32_t, uint32_t, 32u)
NST_SHIFT(int64, int64_t, uint64_t, 64u)
NST_SHIFT(uint8, uint8_t, uint32_t, 8u)
NST_SHIFT(uint16, uint16_t, uint32_t, 16u)
NST_SHIFT(uint32, uint32_t, uint32_t, 32u)
NST_SHIFT(uint64, uint64_t, uint64_t, 64u)
NST_ABS(int8, int8_t, uint32_t)
NST_ABS(int16, int16_t, uint32_t)
NST_ABS(int32, int32_t, uint32_t)
NST_ABS(int64, int64_t, uint64_t)
#undef NST_SHIFT
#undef NST_ABS

/* ~a of types that C promotes. */
static inline uint8_t nst_not_uint8(uint8_t a) { return (uint8_t)~a; }
static inline uint16_t nst_not_uint16(uint16_t a) { return (uint16_t)~a; }

/* a to the power b; a negative exponent gives 0, or +-1 for a = +-1. */
static inline uint64_t nst_pow_uint64(uint64_t a, uint64_t b) {
    uint64_t result = 1u;
    while (b != 0u) {
        if ((b & 1u) != 0u) result *= a;
        a *= a;
        b >>= 1;
    }
    return result;
}
static inline int64_t nst_pow_int64(int64_t a, int64_t b) {
    if (b < 0) return a == 1 ? 1 : (a == -1 ? ((b & 1) != 0 ? -1 : 1) : 0);
    return (int64_t)nst_pow_uint64((uint64_t)a, (uint64_t)b);
}

/* a * b + c: rounded once where the core does that in one instruction, twice elsewhere.  Strict C modes
 * (-std=c99) never fuse a written a * b + c. */
static inline float nst_fma_float32(float a, float b, float c) {
#if defined(__FP_FAST_FMAF)
    return fmaf(a, b, c);
#else
    return a * b + c;
#endif
}
static inline double nst_fma_float64(double a, double b, double c) {
#if defined(__FP_FAST_FMA)
    return fma(a, b, c);
#else
    return a * b + c;
#endif
}

/* The high word of a * b + c in 64 bits, in two's complement. */
static inline int32_t nst_long_sum(int32_t a, int32_t b, int64_t c) {
    return (int32_t)((int64_t)((uint64_t)((int64_t)a * b) + (uint64_t)c) >> 32);
}

/* x, or x >> bits for literal bits of 1..31, limited to the values of a byte. */
#if defined(__GNUC__) && defined(__arm__) && defined(__ARM_FEATURE_SAT)
static inline int8_t nst_saturate_int8(int32_t x) {
    int32_t y;
    __asm__("ssat %0, #8, %1" : "=r"(y) : "r"(x));
    return (int8_t)y;
}
static inline uint8_t nst_saturate_uint8(int32_t x) {
    int32_t y;
    __asm__("usat %0, #8, %1" : "=r"(y) : "r"(x));
    return (uint8_t)y;
}
#define nst_saturate_int8_shr(x, bits) nst_saturate_int8_##bits(x)
#define nst_saturate_uint8_shr(x, bits) nst_saturate_uint8_##bits(x)
#define NST_SATURATE(BITS)                                                 \
    static inline int8_t nst_saturate_int8_##BITS(int32_t x) {             \
        int32_t y;                                                         \
        __asm__("ssat %0, #8, %1, asr #" #BITS : "=r"(y) : "r"(x));        \
        return (int8_t)y;                                                  \
    }                                                                      \
    static inline uint8_t nst_saturate_uint8_##BITS(int32_t x) {           \
        int32_t y;                                                         \
        __asm__("usat %0, #8, %1, asr #" #BITS : "=r"(y) : "r"(x));        \
        return (uint8_t)y;                                                 \
    }
NST_SATURATE(1) NST_SATURATE(2) NST_SATURATE(3) NST_SATURATE(4) NST_SATURATE(5) NST_SATURATE(6)
NST_SATURATE(7) NST_SATURATE(8) NST_SATURATE(9) NST_SATURATE(10) NST_SATURATE(11) NST_SATURATE(12)
NST_SATURATE(13) NST_SATURATE(14) NST_SATURATE(15) NST_SATURATE(16) NST_SATURATE(17) NST_SATURATE(18)
NST_SATURATE(19) NST_SATURATE(20) NST_SATURATE(21) NST_SATURATE(22) NST_SATURATE(23) NST_SATURATE(24)
NST_SATURATE(25) NST_SATURATE(26) NST_SATURATE(27) NST_SATURATE(28) NST_SATURATE(29) NST_SATURATE(30)
NST_SATURATE(31)
#undef NST_SATURATE
#else
static inline int8_t nst_saturate_int8(int32_t x) {
    return (int8_t)nst_min_int32(nst_max_int32(x, -128), 127);
}
static inline uint8_t nst_saturate_uint8(int32_t x) {
    return (uint8_t)nst_min_int32(nst_max_int32(x, 0), 255);
}
#define nst_saturate_int8_shr(x, bits) nst_saturate_int8((x) >> (bits))
#define nst_saturate_uint8_shr(x, bits) nst_saturate_uint8((x) >> (bits))
#endif

static inline float nst_sigmoid_float32(float x) { return 1.0f / (1.0f + expf(-x)); }
static inline double nst_sigmoid_float64(double x) { return 1.0 / (1.0 + exp(-x)); }

/* The bits of a value as a type of the same size. */
#define NST_BITS(from, from_type, to, to_type)                        \
    static inline to_type nst_bits_##from##_##to(from_type value) {   \
        to_type result;                                              \
        memcpy(&result, &value, sizeof result);                      \
        return result;                                               \
    }
NST_BITS(float32, float, uint32, uint32_t)
NST_BITS(float32, float, int32, int32_t)
NST_BITS(uint32, uint32_t, float32, float)
NST_BITS(int32, int32_t, float32, float)
NST_BITS(float64, double, uint64, uint64_t)
NST_BITS(float64, double, int64, int64_t)
NST_BITS(uint64, uint64_t, float64, double)
NST_BITS(int64, int64_t, float64, double)
#undef NST_BITS

#ifdef __cplusplus
}
#endif

#endif /* NST_KERNELS_H */
