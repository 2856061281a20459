/* nst_integer.h - what generated kernels call for integer vectors and dot products. */
#ifndef NST_INTEGER_H
#define NST_INTEGER_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX2__) || defined(__AVX512F__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#elif defined(__ARM_FEATURE_MVE)
#include <arm_mve.h>
#endif
#if defined(__ARM_FEATURE_DSP)
#include <arm_acle.h>
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Four bytes, or two halves, as one word, from any address. */
static inline int32_t nst_load_word(const void *p) {
    int32_t word;
    memcpy(&word, p, sizeof word);
    return word;
}

/* Two neighbouring signed bytes, widened, as the halves of a word. */
static inline int32_t nst_load_pair(const int8_t *p) {
    return (int32_t)((uint32_t)(uint16_t)p[0] | (uint32_t)p[1] << 16);
}

/* The signs of four bytes changed over: what is counted from -128. */
static inline int32_t nst_flip_word(int32_t word) {
    return word ^ (int32_t)INT32_C(-2139062144);
}

#if defined(__ARM_FEATURE_DSP)
/* Bytes 0 and 2, or 1 and 3, of a word, widened to its halves. */
static inline int32_t nst_even_bytes(int32_t word) {
    return __sxtb16(word);
}
static inline int32_t nst_odd_bytes(int32_t word) {
    int32_t halves; /* gcc 12 does not fold the rotation into the intrinsic. */
    __asm__("sxtb16 %0, %1, ror #8" : "=r"(halves) : "r"(word));
    return halves;
}
/* Low halves of a and b, or high halves, as one word: those of a first. */
static inline int32_t nst_low_halves(int32_t a, int32_t b) {
    int32_t both;
    __asm__("pkhbt %0, %1, %2, lsl #16" : "=r"(both) : "r"(a), "r"(b));
    return both;
}
static inline int32_t nst_high_halves(int32_t a, int32_t b) {
    int32_t both;
    __asm__("pkhtb %0, %1, %2, asr #16" : "=r"(both) : "r"(b), "r"(a));
    return both;
}
#endif

#ifdef __cplusplus
}
#endif

#endif
