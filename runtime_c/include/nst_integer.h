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

/* What lies at a pointer is loaded anew in each iteration. */
#if defined(__GNUC__)
#define NST_LOADED_ANEW(pointer) __asm__("" : "+r"(pointer))
#else
#define NST_LOADED_ANEW(pointer) (void)0
#endif

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
/* Four bytes less `zero`, as halves. */
#define NST_STORE_WIDENED(TYPE, EXTEND)                                                             \
    static inline void nst_store_widened_##TYPE(int16_t *to, const TYPE##_t *from, int32_t zero) {  \
        const int32_t word = nst_load_word(from);                                                   \
        const uint32_t less = (0u - (uint32_t)zero) & 0xffffu, both = less | less << 16;                  \
        int32_t even, odd;                                                                          \
        __asm__(EXTEND " %0, %1, %2" : "=r"(even) : "r"(both), "r"(word));                          \
        __asm__(EXTEND " %0, %1, %2, ror #8" : "=r"(odd) : "r"(both), "r"(word));                   \
        const int32_t low = nst_low_halves(even, odd), high = nst_high_halves(even, odd);           \
        memcpy(to, &low, sizeof low);                                                               \
        memcpy(to + 2, &high, sizeof high);                                                         \
    }
NST_STORE_WIDENED(int8, "sxtab16")
NST_STORE_WIDENED(uint8, "uxtab16")
#undef NST_STORE_WIDENED
#endif

/* Vectors of int32, of suffix S and type V: what is loaded from narrower integers is widened, what is stored
 * to them is cut to their bits.  `load_n`, `store_n`: the first n lanes; the others are 0, or stay. */
#define NST_INTEGER_PARTIAL(S, V, LANES)                                    \
    NST_INTEGER_PARTIAL_OF(S, V, LANES, int8, int8_t)                       \
    NST_INTEGER_PARTIAL_OF(S, V, LANES, uint8, uint8_t)                     \
    NST_INTEGER_PARTIAL_OF(S, V, LANES, int16, int16_t)                     \
    NST_INTEGER_PARTIAL_OF(S, V, LANES, uint16, uint16_t)
#define NST_INTEGER_PARTIAL_OF(S, V, LANES, NAME, TYPE)                     \
    static inline V nst_load_n_##NAME##_##S(const TYPE *p, int n) {         \
        TYPE t[LANES] = {0};                                                \
        for (int i = 0; i < n; ++i) {                                       \
            t[i] = p[i];                                                    \
        }                                                                   \
        return nst_load_##NAME##_##S(t);                                    \
    }                                                                       \
    static inline void nst_store_n_##NAME##_##S(TYPE *p, V v, int n) {      \
        TYPE t[LANES];                                                      \
        nst_store_##NAME##_##S(t, v);                                       \
        for (int i = 0; i < n; ++i) {                                       \
            p[i] = t[i];                                                    \
        }                                                                   \
    }

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)
static inline __mmask16 nst_mask_i32x16(int n) { return (__mmask16)((1u << n) - 1u); }
static inline __m512i nst_load_n_i32x16(const int32_t *p, int n) {
    return _mm512_maskz_loadu_epi32(nst_mask_i32x16(n), p);
}
static inline void nst_store_n_i32x16(int32_t *p, __m512i v, int n) {
    _mm512_mask_storeu_epi32(p, nst_mask_i32x16(n), v);
}
static inline __m512i nst_fill_n_i32x16(__m512i v, int n, int32_t x) {
    return _mm512_mask_blend_epi32(nst_mask_i32x16(n), _mm512_set1_epi32(x), v);
}
static inline int32_t nst_hsum_i32x16(__m512i v) { return _mm512_reduce_add_epi32(v); }
static inline int32_t nst_hmax_i32x16(__m512i v) { return _mm512_reduce_max_epi32(v); }
static inline int32_t nst_hmin_i32x16(__m512i v) { return _mm512_reduce_min_epi32(v); }
static inline __m512i nst_select_lt_i32x16(__m512i a, __m512i b, __m512i x, __m512i y) {
    return _mm512_mask_blend_epi32(_mm512_cmplt_epi32_mask(a, b), y, x);
}
static inline __m512i nst_select_le_i32x16(__m512i a, __m512i b, __m512i x, __m512i y) {
    return _mm512_mask_blend_epi32(_mm512_cmple_epi32_mask(a, b), y, x);
}
static inline __m512i nst_select_eq_i32x16(__m512i a, __m512i b, __m512i x, __m512i y) {
    return _mm512_mask_blend_epi32(_mm512_cmpeq_epi32_mask(a, b), y, x);
}
/* Sixteen int64 as they meet the products of even and of odd lanes. */
typedef struct {
    __m512i even, odd;
} nst_long_i32x16;
static inline nst_long_i32x16 nst_split_long_i32x16(__m512i a, __m512i b) {
    nst_long_i32x16 v;
    v.even = _mm512_permutex2var_epi64(a, _mm512_setr_epi64(0, 2, 4, 6, 8, 10, 12, 14), b);
    v.odd = _mm512_permutex2var_epi64(a, _mm512_setr_epi64(1, 3, 5, 7, 9, 11, 13, 15), b);
    return v;
}
static inline nst_long_i32x16 nst_load_long_i32x16(const int64_t *p) {
    return nst_split_long_i32x16(_mm512_loadu_si512((const void *)p), _mm512_loadu_si512((const void *)(p + 8)));
}
static inline nst_long_i32x16 nst_load_n_long_i32x16(const int64_t *p, int n) {
    const unsigned lanes = nst_mask_i32x16(n);
    return nst_split_long_i32x16(_mm512_maskz_loadu_epi64((__mmask8)lanes, p),
                                 _mm512_maskz_loadu_epi64((__mmask8)(lanes >> 8), p + 8));
}
static inline nst_long_i32x16 nst_set1_long_i32x16(int64_t x) {
    nst_long_i32x16 v;
    v.even = v.odd = _mm512_set1_epi64(x);
    return v;
}
static inline void nst_store_saturated_int8_i32x16(int8_t *p, __m512i v) {
    _mm512_mask_cvtsepi32_storeu_epi8((void *)p, (__mmask16)0xffff, v);
}
static inline void nst_store_saturated_uint8_i32x16(uint8_t *p, __m512i v) {
    const __m512i positive = _mm512_max_epi32(v, _mm512_setzero_si512());
    _mm512_mask_cvtusepi32_storeu_epi8((void *)p, (__mmask16)0xffff, positive);
}
static inline nst_long_i32x16 nst_products_i32x16(__m512i a, __m512i b) {
    nst_long_i32x16 v;
    v.even = _mm512_mul_epi32(a, b);
    v.odd = _mm512_mul_epi32(_mm512_srli_epi64(a, 32), _mm512_srli_epi64(b, 32));
    return v;
}
static inline __m512i nst_high_words_i32x16(nst_long_i32x16 v) {
    return _mm512_mask_shuffle_epi32(v.odd, 0x5555, v.even, _MM_PERM_DDBB);
}
/* (a * b + c) >> 32; in the second form negative a take `below` off. */
static inline __m512i nst_high_sum_i32x16(__m512i a, __m512i b, nst_long_i32x16 c) {
    nst_long_i32x16 v = nst_products_i32x16(a, b);
    v.even = _mm512_add_epi64(v.even, c.even);
    v.odd = _mm512_add_epi64(v.odd, c.odd);
    return nst_high_words_i32x16(v);
}
static inline __m512i nst_high_sum_below_i32x16(__m512i a, __m512i b, nst_long_i32x16 c, __m512i below) {
    const __m512i lowered = _mm512_maskz_mov_epi32(_mm512_movepi32_mask(a), below);
    nst_long_i32x16 v = nst_products_i32x16(a, b);
    v.even = _mm512_add_epi64(v.even, c.even);
    v.odd = _mm512_add_epi64(v.odd, c.odd);
    v.even = _mm512_sub_epi64(v.even, _mm512_maskz_mov_epi32(0x5555, lowered));
    v.odd = _mm512_sub_epi64(v.odd, _mm512_srli_epi64(lowered, 32));
    return nst_high_words_i32x16(v);
}
static inline __m512i nst_high_word_i32x16(__m512i a, __m512i b) {
    return nst_high_words_i32x16(nst_products_i32x16(a, b));
}
/* (a * b + 2^30) >> 31 */
static inline __m512i nst_high_product_i32x16(__m512i a, __m512i b) {
    const nst_long_i32x16 v = nst_products_i32x16(a, b);
    const __m512i half = _mm512_set1_epi64(INT64_C(1) << 30);
    const __m512i even = _mm512_srli_epi64(_mm512_add_epi64(v.even, half), 31);
    const __m512i odd = _mm512_slli_epi64(_mm512_add_epi64(v.odd, half), 1);
    return _mm512_mask_mov_epi32(even, 0xaaaa, odd);
}
/* x / 2^n rounded half away from zero: of magnitudes half up.  Shifts by 32 and more give 0. */
static inline __m512i nst_shift_away_i32x16(__m512i x, __m512i n) {
    const __m512i one = _mm512_set1_epi32(1), size = _mm512_abs_epi32(x);
    const __m512i last = _mm512_and_si512(_mm512_srlv_epi32(size, _mm512_sub_epi32(n, one)), one);
    const __m512i q = _mm512_add_epi32(_mm512_srlv_epi32(size, n), last);
    return _mm512_mask_sub_epi32(q, _mm512_movepi32_mask(x), _mm512_setzero_si512(), q);
}
static inline __m512i nst_shift_half_up_i32x16(__m512i x, __m512i n) {
    const __m512i half = _mm512_srli_epi32(_mm512_sllv_epi32(_mm512_set1_epi32(1), n), 1);
    return _mm512_srav_epi32(_mm512_add_epi32(x, half), n);
}
static inline __m512i nst_rounded_shr_i32x16(__m512i x, unsigned n) {
    const __m512i last = _mm512_and_si512(_mm512_srli_epi32(x, n - 1u), _mm512_set1_epi32(1));
    return _mm512_add_epi32(_mm512_srai_epi32(x, n), last);
}
#define NST_INTEGER_WIDTH(NAME, TYPE, LOADED, LOAD, MASKED, WIDEN, BITS)                       \
    static inline __m512i nst_load_##NAME##_i32x16(const TYPE *p) {                                 \
        return WIDEN(LOAD((const LOADED *)(const void *)p));                                        \
    }                                                                                               \
    static inline __m512i nst_load_n_##NAME##_i32x16(const TYPE *p, int n) {                        \
        return WIDEN(MASKED(nst_mask_i32x16(n), p));                                                \
    }                                                                                               \
    static inline void nst_store_##NAME##_i32x16(TYPE *p, __m512i v) {                              \
        _mm512_mask_cvtepi32_storeu_epi##BITS((void *)p, (__mmask16)0xffff, v);                     \
    }                                                                                               \
    static inline void nst_store_n_##NAME##_i32x16(TYPE *p, __m512i v, int n) {                     \
        _mm512_mask_cvtepi32_storeu_epi##BITS((void *)p, nst_mask_i32x16(n), v);                    \
    }
NST_INTEGER_WIDTH(int8, int8_t, __m128i, _mm_loadu_si128, _mm_maskz_loadu_epi8, _mm512_cvtepi8_epi32, 8)
NST_INTEGER_WIDTH(uint8, uint8_t, __m128i, _mm_loadu_si128, _mm_maskz_loadu_epi8, _mm512_cvtepu8_epi32, 8)
NST_INTEGER_WIDTH(int16, int16_t, __m256i, _mm256_loadu_si256, _mm256_maskz_loadu_epi16, _mm512_cvtepi16_epi32, 16)
NST_INTEGER_WIDTH(uint16, uint16_t, __m256i, _mm256_loadu_si256, _mm256_maskz_loadu_epi16, _mm512_cvtepu16_epi32, 16)
#undef NST_INTEGER_WIDTH
#endif

#if defined(__AVX2__)
static inline __m256i nst_mask_i32x8(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
static inline __m256i nst_load_n_i32x8(const int32_t *p, int n) {
    return _mm256_maskload_epi32(p, nst_mask_i32x8(n));
}
static inline void nst_store_n_i32x8(int32_t *p, __m256i v, int n) {
    _mm256_maskstore_epi32(p, nst_mask_i32x8(n), v);
}
static inline __m256i nst_fill_n_i32x8(__m256i v, int n, int32_t x) {
    return _mm256_blendv_epi8(_mm256_set1_epi32(x), v, nst_mask_i32x8(n));
}
#define NST_ACROSS(NAME, OP)                                                                        \
    static inline int32_t nst_##NAME##_i32x8(__m256i v) {                                           \
        __m128i t = OP(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));                  \
        t = OP(t, _mm_shuffle_epi32(t, 0x4e));                                                      \
        return _mm_cvtsi128_si32(OP(t, _mm_shuffle_epi32(t, 0xb1)));                                \
    }
NST_ACROSS(hsum, _mm_add_epi32)
NST_ACROSS(hmax, _mm_max_epi32)
NST_ACROSS(hmin, _mm_min_epi32)
#undef NST_ACROSS
static inline __m256i nst_select_lt_i32x8(__m256i a, __m256i b, __m256i x, __m256i y) {
    return _mm256_blendv_epi8(y, x, _mm256_cmpgt_epi32(b, a));
}
static inline __m256i nst_select_le_i32x8(__m256i a, __m256i b, __m256i x, __m256i y) {
    return _mm256_blendv_epi8(x, y, _mm256_cmpgt_epi32(a, b));
}
static inline __m256i nst_select_eq_i32x8(__m256i a, __m256i b, __m256i x, __m256i y) {
    return _mm256_blendv_epi8(y, x, _mm256_cmpeq_epi32(a, b));
}
/* Eight int64 as they meet the products of even and of odd lanes. */
typedef struct {
    __m256i even, odd;
} nst_long_i32x8;
static inline nst_long_i32x8 nst_load_long_i32x8(const int64_t *p) {
    const __m256i a = _mm256_loadu_si256((const __m256i *)(const void *)p);
    const __m256i b = _mm256_loadu_si256((const __m256i *)(const void *)(p + 4));
    nst_long_i32x8 v;
    v.even = _mm256_permute4x64_epi64(_mm256_unpacklo_epi64(a, b), 0xd8);
    v.odd = _mm256_permute4x64_epi64(_mm256_unpackhi_epi64(a, b), 0xd8);
    return v;
}
static inline nst_long_i32x8 nst_load_n_long_i32x8(const int64_t *p, int n) {
    int64_t t[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    for (int i = 0; i < n; ++i) {
        t[i] = p[i];
    }
    return nst_load_long_i32x8(t);
}
static inline nst_long_i32x8 nst_set1_long_i32x8(int64_t x) {
    nst_long_i32x8 v;
    v.even = v.odd = _mm256_set1_epi64x(x);
    return v;
}
static inline __m128i nst_halves_i32x8(__m256i v) {
    return _mm_packs_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
}
static inline void nst_store_saturated_int8_i32x8(int8_t *p, __m256i v) {
    const __m128i halves = nst_halves_i32x8(v);
    _mm_storel_epi64((__m128i *)(void *)p, _mm_packs_epi16(halves, halves));
}
static inline void nst_store_saturated_uint8_i32x8(uint8_t *p, __m256i v) {
    const __m128i halves = nst_halves_i32x8(v);
    _mm_storel_epi64((__m128i *)(void *)p, _mm_packus_epi16(halves, halves));
}
static inline nst_long_i32x8 nst_products_i32x8(__m256i a, __m256i b) {
    nst_long_i32x8 v;
    v.even = _mm256_mul_epi32(a, b);
    v.odd = _mm256_mul_epi32(_mm256_srli_epi64(a, 32), _mm256_srli_epi64(b, 32));
    return v;
}
static inline __m256i nst_high_words_i32x8(nst_long_i32x8 v) {
    return _mm256_blend_epi32(_mm256_shuffle_epi32(v.even, 0xf5), v.odd, 0xaa);
}
/* (a * b + c) >> 32; in the second form negative a take `below` off. */
static inline __m256i nst_high_sum_i32x8(__m256i a, __m256i b, nst_long_i32x8 c) {
    nst_long_i32x8 v = nst_products_i32x8(a, b);
    v.even = _mm256_add_epi64(v.even, c.even);
    v.odd = _mm256_add_epi64(v.odd, c.odd);
    return nst_high_words_i32x8(v);
}
static inline __m256i nst_high_sum_below_i32x8(__m256i a, __m256i b, nst_long_i32x8 c, __m256i below) {
    const __m256i lowered = _mm256_and_si256(_mm256_srai_epi32(a, 31), below);
    nst_long_i32x8 v = nst_products_i32x8(a, b);
    v.even = _mm256_add_epi64(v.even, c.even);
    v.odd = _mm256_add_epi64(v.odd, c.odd);
    v.even = _mm256_sub_epi64(v.even, _mm256_blend_epi32(_mm256_setzero_si256(), lowered, 0x55));
    v.odd = _mm256_sub_epi64(v.odd, _mm256_srli_epi64(lowered, 32));
    return nst_high_words_i32x8(v);
}
static inline __m256i nst_high_word_i32x8(__m256i a, __m256i b) {
    return nst_high_words_i32x8(nst_products_i32x8(a, b));
}
/* (a * b + 2^30) >> 31 */
static inline __m256i nst_high_product_i32x8(__m256i a, __m256i b) {
    const nst_long_i32x8 v = nst_products_i32x8(a, b);
    const __m256i half = _mm256_set1_epi64x(INT64_C(1) << 30);
    const __m256i even = _mm256_srli_epi64(_mm256_add_epi64(v.even, half), 31);
    const __m256i odd = _mm256_slli_epi64(_mm256_add_epi64(v.odd, half), 1);
    return _mm256_blend_epi32(even, odd, 0xaa);
}
/* x / 2^n rounded half away from zero: of magnitudes half up.  Shifts by 32 and more give 0. */
static inline __m256i nst_shift_away_i32x8(__m256i x, __m256i n) {
    const __m256i one = _mm256_set1_epi32(1), size = _mm256_abs_epi32(x), sign = _mm256_srai_epi32(x, 31);
    const __m256i last = _mm256_and_si256(_mm256_srlv_epi32(size, _mm256_sub_epi32(n, one)), one);
    const __m256i q = _mm256_add_epi32(_mm256_srlv_epi32(size, n), last);
    return _mm256_sub_epi32(_mm256_xor_si256(q, sign), sign);
}
static inline __m256i nst_shift_half_up_i32x8(__m256i x, __m256i n) {
    const __m256i half = _mm256_srli_epi32(_mm256_sllv_epi32(_mm256_set1_epi32(1), n), 1);
    return _mm256_srav_epi32(_mm256_add_epi32(x, half), n);
}
static inline __m256i nst_rounded_shr_i32x8(__m256i x, int n) {
    const __m256i last = _mm256_and_si256(_mm256_srli_epi32(x, n - 1), _mm256_set1_epi32(1));
    return _mm256_add_epi32(_mm256_srai_epi32(x, n), last);
}
static inline void nst_store_bytes_i32x8(void *p, __m256i v) {
    const __m256i low = _mm256_shuffle_epi8(v, _mm256_set1_epi32(0x0c080400));
    const __m128i both = _mm_unpacklo_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
    _mm_storel_epi64((__m128i *)p, both);
}
static inline void nst_store_halves_i32x8(void *p, __m256i v) {
    const __m256i low = _mm256_shuffle_epi8(v, _mm256_set1_epi64x(0x0d0c090805040100));
    const __m128i both = _mm_unpacklo_epi64(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
    _mm_storeu_si128((__m128i *)p, both);
}
#define NST_INTEGER_WIDTH(NAME, TYPE, LOAD, WIDEN, STORE)                                            \
    static inline __m256i nst_load_##NAME##_i32x8(const TYPE *p) {                                  \
        return WIDEN(LOAD((const __m128i *)(const void *)p));                                       \
    }                                                                                               \
    static inline void nst_store_##NAME##_i32x8(TYPE *p, __m256i v) { STORE(p, v); }
NST_INTEGER_WIDTH(int8, int8_t, _mm_loadl_epi64, _mm256_cvtepi8_epi32, nst_store_bytes_i32x8)
NST_INTEGER_WIDTH(uint8, uint8_t, _mm_loadl_epi64, _mm256_cvtepu8_epi32, nst_store_bytes_i32x8)
NST_INTEGER_WIDTH(int16, int16_t, _mm_loadu_si128, _mm256_cvtepi16_epi32, nst_store_halves_i32x8)
NST_INTEGER_WIDTH(uint16, uint16_t, _mm_loadu_si128, _mm256_cvtepu16_epi32, nst_store_halves_i32x8)
#undef NST_INTEGER_WIDTH
NST_INTEGER_PARTIAL(i32x8, __m256i, 8)
#endif

#if defined(__aarch64__)
/* Four int64 as they meet the products of low and of high lanes. */
typedef struct {
    int64x2_t low, high;
} nst_long_i32x4;
static inline nst_long_i32x4 nst_load_long_i32x4(const int64_t *p) {
    nst_long_i32x4 v;
    v.low = vld1q_s64(p);
    v.high = vld1q_s64(p + 2);
    return v;
}
static inline nst_long_i32x4 nst_load_n_long_i32x4(const int64_t *p, int n) {
    int64_t t[4] = {0, 0, 0, 0};
    for (int i = 0; i < n; ++i) {
        t[i] = p[i];
    }
    return nst_load_long_i32x4(t);
}
static inline nst_long_i32x4 nst_set1_long_i32x4(int64_t x) {
    nst_long_i32x4 v;
    v.low = v.high = vdupq_n_s64(x);
    return v;
}
static inline nst_long_i32x4 nst_sums_i32x4(nst_long_i32x4 c, int32x4_t a, int32x4_t b) {
    c.low = vmlal_s32(c.low, vget_low_s32(a), vget_low_s32(b));
    c.high = vmlal_high_s32(c.high, a, b);
    return c;
}
static inline int32x4_t nst_high_words_i32x4(nst_long_i32x4 v) {
    return vuzp2q_s32(vreinterpretq_s32_s64(v.low), vreinterpretq_s32_s64(v.high));
}
/* (a * b + c) >> 32; in the second form negative a take `below` off. */
static inline int32x4_t nst_high_sum_i32x4(int32x4_t a, int32x4_t b, nst_long_i32x4 c) {
    return nst_high_words_i32x4(nst_sums_i32x4(c, a, b));
}
static inline int32x4_t nst_high_sum_below_i32x4(int32x4_t a, int32x4_t b, nst_long_i32x4 c, int32x4_t below) {
    return nst_high_words_i32x4(nst_sums_i32x4(nst_sums_i32x4(c, a, b), vshrq_n_s32(a, 31), below));
}
static inline int32x4_t nst_high_word_i32x4(int32x4_t a, int32x4_t b) {
    return nst_high_sum_i32x4(a, b, nst_set1_long_i32x4(0));
}
/* x / 2^n rounded half away from zero: a negative x is taken one lower before half up. */
static inline int32x4_t nst_shift_away_i32x4(int32x4_t x, int32x4_t n) {
    const int32x4_t left = vnegq_s32(n);
    return vrshlq_s32(vqaddq_s32(x, vshrq_n_s32(vandq_s32(x, left), 31)), left);
}
static inline int32x4_t nst_shift_half_up_i32x4(int32x4_t x, int32x4_t n) { return vrshlq_s32(x, vnegq_s32(n)); }
static inline int16x8_t nst_halves_i32x4(int32x4_t v) {
    const int16x4_t halves = vqmovn_s32(v);
    return vcombine_s16(halves, halves);
}
static inline void nst_store_saturated_int8_i32x4(int8_t *p, int32x4_t v) {
    const int32_t word = vget_lane_s32(vreinterpret_s32_s8(vqmovn_s16(nst_halves_i32x4(v))), 0);
    memcpy(p, &word, sizeof word);
}
static inline void nst_store_saturated_uint8_i32x4(uint8_t *p, int32x4_t v) {
    const int32_t word = vget_lane_s32(vreinterpret_s32_u8(vqmovun_s16(nst_halves_i32x4(v))), 0);
    memcpy(p, &word, sizeof word);
}
static inline int32x4_t nst_load_n_i32x4(const int32_t *p, int n) {
    int32_t t[4] = {0, 0, 0, 0};
    for (int i = 0; i < n; ++i) {
        t[i] = p[i];
    }
    return vld1q_s32(t);
}
static inline void nst_store_n_i32x4(int32_t *p, int32x4_t v, int n) {
    int32_t t[4];
    vst1q_s32(t, v);
    for (int i = 0; i < n; ++i) {
        p[i] = t[i];
    }
}
static inline int32x4_t nst_fill_n_i32x4(int32x4_t v, int n, int32_t x) {
    const int32x4_t lane = {0, 1, 2, 3};
    return vbslq_s32(vcltq_s32(lane, vdupq_n_s32(n)), v, vdupq_n_s32(x));
}
static inline int32x4_t nst_select_lt_i32x4(int32x4_t a, int32x4_t b, int32x4_t x, int32x4_t y) {
    return vbslq_s32(vcltq_s32(a, b), x, y);
}
static inline int32x4_t nst_select_le_i32x4(int32x4_t a, int32x4_t b, int32x4_t x, int32x4_t y) {
    return vbslq_s32(vcleq_s32(a, b), x, y);
}
static inline int32x4_t nst_select_eq_i32x4(int32x4_t a, int32x4_t b, int32x4_t x, int32x4_t y) {
    return vbslq_s32(vceqq_s32(a, b), x, y);
}
static inline int32x4_t nst_load_int8_i32x4(const int8_t *p) {
    const int32x2_t word = vdup_n_s32(nst_load_word(p));
    return vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_s32(word))));
}
static inline int32x4_t nst_load_uint8_i32x4(const uint8_t *p) {
    const int32x2_t word = vdup_n_s32(nst_load_word(p));
    return vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(vmovl_u8(vreinterpret_u8_s32(word)))));
}
static inline int32x4_t nst_load_int16_i32x4(const int16_t *p) { return vmovl_s16(vld1_s16(p)); }
static inline int32x4_t nst_load_uint16_i32x4(const uint16_t *p) {
    return vreinterpretq_s32_u32(vmovl_u16(vld1_u16(p)));
}
static inline void nst_store_int8_i32x4(int8_t *p, int32x4_t v) {
    const int16x4_t half = vmovn_s32(v);
    const int8x8_t low = vmovn_s16(vcombine_s16(half, half));
    const int32_t word = vget_lane_s32(vreinterpret_s32_s8(low), 0);
    memcpy(p, &word, sizeof word);
}
static inline void nst_store_uint8_i32x4(uint8_t *p, int32x4_t v) { nst_store_int8_i32x4((int8_t *)p, v); }
static inline void nst_store_int16_i32x4(int16_t *p, int32x4_t v) { vst1_s16(p, vmovn_s32(v)); }
static inline void nst_store_uint16_i32x4(uint16_t *p, int32x4_t v) { nst_store_int16_i32x4((int16_t *)p, v); }
NST_INTEGER_PARTIAL(i32x4, int32x4_t, 4)
#endif

#if defined(__ARM_FEATURE_MVE)
static inline mve_pred16_t nst_lanes_i32x4(int n) { return vctp32q((uint32_t)n); }
static inline int32x4_t nst_load_n_i32x4(const int32_t *p, int n) {
    return vld1q_z_s32(p, nst_lanes_i32x4(n));
}
/* gcc 12 takes a predicated store for one of all lanes, and drops stores before it that it covers. */
#define NST_STORES_BEFORE() __asm__ volatile("" ::: "memory")
static inline void nst_store_n_i32x4(int32_t *p, int32x4_t v, int n) {
    NST_STORES_BEFORE();
    vst1q_p_s32(p, v, nst_lanes_i32x4(n));
}
static inline int32x4_t nst_fill_n_i32x4(int32x4_t v, int n, int32_t x) {
    return vpselq_s32(v, vdupq_n_s32(x), nst_lanes_i32x4(n));
}
static inline int32_t nst_hmax_i32x4(int32x4_t v) { return vmaxvq_s32(INT32_MIN, v); }
static inline int32_t nst_hmin_i32x4(int32x4_t v) { return vminvq_s32(INT32_MAX, v); }
static inline int32x4_t nst_select_lt_i32x4(int32x4_t a, int32x4_t b, int32x4_t x, int32x4_t y) {
    return vpselq_s32(x, y, vcmpltq_s32(a, b));
}
static inline int32x4_t nst_select_le_i32x4(int32x4_t a, int32x4_t b, int32x4_t x, int32x4_t y) {
    return vpselq_s32(x, y, vcmpleq_s32(a, b));
}
static inline int32x4_t nst_select_eq_i32x4(int32x4_t a, int32x4_t b, int32x4_t x, int32x4_t y) {
    return vpselq_s32(x, y, vcmpeqq_s32(a, b));
}
/* Low and high words of an int64 for each lane; the high word of a b + c. */
static inline int32x4x2_t nst_load_n_long_i32x4(const int64_t *p, int n) {
    int64_t t[4] = {0, 0, 0, 0};
    for (int i = 0; i < n; ++i) {
        t[i] = p[i];
    }
    return vld2q_s32((const int32_t *)(const void *)t);
}
static inline int32x4x2_t nst_set1_long_i32x4(int64_t x) {
    int32x4x2_t v;
    v.val[0] = vdupq_n_s32((int32_t)(uint32_t)((uint64_t)x & UINT32_MAX));
    v.val[1] = vdupq_n_s32((int32_t)(x >> 32));
    return v;
}
static inline int32x4_t nst_high_sum_i32x4(int32x4_t a, int32x4_t b, int32x4x2_t c) {
    const uint32x4_t low = vreinterpretq_u32_s32(c.val[0]);
    const uint32x4_t sum = vaddq_u32(vreinterpretq_u32_s32(vmulq_s32(a, b)), low);
    const int32x4_t high = vaddq_s32(vmulhq_s32(a, b), c.val[1]);
    return vaddq_m_n_s32(high, high, 1, vcmphiq_u32(low, sum));
}
/* That less `below` where a is negative. */
static inline int32x4_t nst_high_sum_below_i32x4(int32x4_t a, int32x4_t b, int32x4x2_t c, int32x4_t below) {
    const int32x4_t less = vandq_s32(below, vshrq_n_s32(a, 31));
    const uint32x4_t low = vreinterpretq_u32_s32(c.val[0]), part = vreinterpretq_u32_s32(less);
    const int32x4_t high = vsubq_s32(c.val[1], vshrq_n_s32(less, 31));
    int32x4x2_t rest;
    rest.val[0] = vreinterpretq_s32_u32(vsubq_u32(low, part));
    rest.val[1] = vsubq_m_n_s32(high, high, 1, vcmphiq_u32(part, low));
    return nst_high_sum_i32x4(a, b, rest);
}
/* x / 2^n rounded half away from zero: a negative x is taken one lower before half up. */
static inline int32x4_t nst_shift_away_i32x4(int32x4_t x, int32x4_t n) {
    const int32x4_t left = vnegq_s32(n);
    return vrshlq_s32(vqaddq_s32(x, vshrq_n_s32(vandq_s32(x, left), 31)), left);
}
/* Negative lanes one lower, but for the lowest. */
static inline int32x4_t nst_lower_i32x4(int32x4_t x) {
    return vqaddq_s32(x, vshrq_n_s32(x, 31));
}
#if defined(__GNUC__) && !defined(__clang__)
/* What gcc 12 makes of the intrinsics for these takes a copy, or an instruction an address, more.
 * Loads that widen take their address from r0..r7. */
#define NST_NEXT(SUFFIX, V, LANES, LOAD, ADDRESS)                                                   \
    struct nst_run_##SUFFIX {                                                                       \
        int8_t elements[LANES];                                                                     \
    };                                                                                              \
    static inline V nst_next_int8_##SUFFIX(const int8_t **p) {                                      \
        V v;                                                                                        \
        const int8_t *q = *p;                                                                       \
        __asm__(LOAD " %q0, [%1], #" #LANES                                                         \
                : "=w"(v), ADDRESS(q) : "m"(*(const struct nst_run_##SUFFIX *)(const void *)q));    \
        *p = q;                                                                                     \
        return v;                                                                                   \
    }
NST_NEXT(i8x16, int8x16_t, 16, "vldrb.8", "+r")
NST_NEXT(i16x8, int16x8_t, 8, "vldrb.s16", "+l")
NST_NEXT(i32x4, int32x4_t, 4, "vldrb.s32", "+l")
#undef NST_NEXT
static inline int32x4_t nst_saturate_int8_i32x4(int32x4_t v) {
    __asm__("vqmovnb.s32 %q0, %q0\n\tvqmovnb.s16 %q0, %q0" : "+w"(v));
    return v;
}
static inline int32x4_t nst_saturate_uint8_i32x4(int32x4_t v) {
    __asm__("vqmovnb.s32 %q0, %q0\n\tvqmovunb.s16 %q0, %q0" : "+w"(v));
    return v;
}
static inline int32x4_t nst_join_i32x4(int32_t a, int32_t b, int32_t c, int32_t d) {
    int32x4_t v;
    __asm__("vmov %q0[2], %q0[0], %1, %3\n\tvmov %q0[3], %q0[1], %2, %4"
            : "=&w"(v) : "r"(a), "r"(b), "r"(c), "r"(d));
    return v;
}
#else
/* Elements at *p, widened to lanes; *p moves behind them. */
static inline int8x16_t nst_next_int8_i8x16(const int8_t **p) {
    const int8_t *q = *p;
    *p = q + 16;
    return vldrbq_s8(q);
}
static inline int16x8_t nst_next_int8_i16x8(const int8_t **p) {
    const int8_t *q = *p;
    *p = q + 8;
    return vldrbq_s16(q);
}
static inline int32x4_t nst_next_int8_i32x4(const int8_t **p) {
    const int8_t *q = *p;
    *p = q + 4;
    return vldrbq_s32(q);
}
/* Lanes limited to a byte, in their lowest bits. */
static inline int32x4_t nst_saturate_int8_i32x4(int32x4_t v) {
    return vmaxq_s32(vminq_s32(v, vdupq_n_s32(127)), vdupq_n_s32(-128));
}
static inline int32x4_t nst_saturate_uint8_i32x4(int32x4_t v) {
    return vmaxq_s32(vminq_s32(v, vdupq_n_s32(255)), vdupq_n_s32(0));
}
static inline int32x4_t nst_join_i32x4(int32_t a, int32_t b, int32_t c, int32_t d) {
    const int32_t lanes[4] = {a, b, c, d};
    return vld1q_s32(lanes);
}
#endif
#define NST_INTEGER_WIDTH(NAME, TYPE, SIZE, KIND, V)                                                 \
    static inline int32x4_t nst_load_##NAME##_i32x4(const TYPE *p) {                                \
        return (int32x4_t)vldr##SIZE##q_##KIND##32(p);                                              \
    }                                                                                               \
    static inline int32x4_t nst_load_n_##NAME##_i32x4(const TYPE *p, int n) {                       \
        return (int32x4_t)vldr##SIZE##q_z_##KIND##32(p, nst_lanes_i32x4(n));                        \
    }                                                                                               \
    static inline void nst_store_##NAME##_i32x4(TYPE *p, int32x4_t v) {                             \
        vstr##SIZE##q_##KIND##32(p, (V)v);                                                          \
    }                                                                                               \
    static inline void nst_store_n_##NAME##_i32x4(TYPE *p, int32x4_t v, int n) {                    \
        NST_STORES_BEFORE();                                                                        \
        vstr##SIZE##q_p_##KIND##32(p, (V)v, nst_lanes_i32x4(n));                                    \
    }
NST_INTEGER_WIDTH(int8, int8_t, b, s, int32x4_t)
NST_INTEGER_WIDTH(uint8, uint8_t, b, u, uint32x4_t)
NST_INTEGER_WIDTH(int16, int16_t, h, s, int32x4_t)
NST_INTEGER_WIDTH(uint16, uint16_t, h, u, uint32x4_t)
#undef NST_INTEGER_WIDTH
#endif

#undef NST_INTEGER_PARTIAL
#undef NST_INTEGER_PARTIAL_OF

/* Vectors of nothing but narrow integers. */
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#define NST_NARROW(S, TYPE, BITS, LANES, CHAR)                                                      \
    static inline __mmask##LANES nst_mask_##S(int n) {                                              \
        return n >= LANES ? (__mmask##LANES)~(__mmask##LANES)0                                      \
                          : (__mmask##LANES)(((__mmask##LANES)1 << n) - 1u);                        \
    }                                                                                               \
    static inline __m512i nst_load_n_##S(const TYPE *p, int n) {                                    \
        return _mm512_maskz_loadu_epi##BITS(nst_mask_##S(n), p);                                    \
    }                                                                                               \
    static inline void nst_store_n_##S(TYPE *p, __m512i v, int n) {                                 \
        _mm512_mask_storeu_epi##BITS(p, nst_mask_##S(n), v);                                        \
    }                                                                                               \
    static inline __m512i nst_fill_n_##S(__m512i v, int n, TYPE x) {                                \
        return _mm512_mask_blend_epi##BITS(nst_mask_##S(n), _mm512_set1_epi##BITS((CHAR)x), v);     \
    }
NST_NARROW(i8x64, int8_t, 8, 64, char)
NST_NARROW(u8x64, uint8_t, 8, 64, char)
NST_NARROW(i16x32, int16_t, 16, 32, short)
NST_NARROW(u16x32, uint16_t, 16, 32, short)
#undef NST_NARROW
#endif

#define NST_NARROW(S, TYPE, V, LANES, LOAD, STORE)                                                  \
    static inline V nst_load_n_##S(const TYPE *p, int n) {                                          \
        TYPE t[LANES] = {0};                                                                        \
        memcpy(t, p, (size_t)n * sizeof t[0]);                                                      \
        return LOAD;                                                                                \
    }                                                                                               \
    static inline void nst_store_n_##S(TYPE *p, V v, int n) {                                       \
        TYPE t[LANES];                                                                              \
        STORE;                                                                                      \
        memcpy(p, t, (size_t)n * sizeof t[0]);                                                      \
    }                                                                                               \
    static inline V nst_fill_n_##S(V v, int n, TYPE x) {                                            \
        TYPE t[LANES];                                                                              \
        STORE;                                                                                      \
        for (int i = n; i < LANES; ++i) {                                                           \
            t[i] = x;                                                                               \
        }                                                                                           \
        return LOAD;                                                                                \
    }
#if defined(__AVX2__)
#define NST_LOAD256 _mm256_loadu_si256((const __m256i *)(const void *)t)
#define NST_STORE256 _mm256_storeu_si256((__m256i *)(void *)t, v)
NST_NARROW(i8x32, int8_t, __m256i, 32, NST_LOAD256, NST_STORE256)
NST_NARROW(u8x32, uint8_t, __m256i, 32, NST_LOAD256, NST_STORE256)
NST_NARROW(i16x16, int16_t, __m256i, 16, NST_LOAD256, NST_STORE256)
NST_NARROW(u16x16, uint16_t, __m256i, 16, NST_LOAD256, NST_STORE256)
#undef NST_LOAD256
#undef NST_STORE256
#endif
#if defined(__aarch64__)
NST_NARROW(i8x16, int8_t, int8x16_t, 16, vld1q_s8(t), vst1q_s8(t, v))
NST_NARROW(u8x16, uint8_t, uint8x16_t, 16, vld1q_u8(t), vst1q_u8(t, v))
NST_NARROW(i16x8, int16_t, int16x8_t, 8, vld1q_s16(t), vst1q_s16(t, v))
NST_NARROW(u16x8, uint16_t, uint16x8_t, 8, vld1q_u16(t), vst1q_u16(t, v))
#endif
#undef NST_NARROW

#if defined(__ARM_FEATURE_MVE)
#define NST_NARROW(S, TYPE, V, BITS, K)                                                             \
    static inline V nst_load_n_##S(const TYPE *p, int n) {                                          \
        return vld1q_z_##K##BITS(p, vctp##BITS##q((uint32_t)n));                                    \
    }                                                                                               \
    static inline void nst_store_n_##S(TYPE *p, V v, int n) {                                       \
        NST_STORES_BEFORE();                                                                        \
        vst1q_p_##K##BITS(p, v, vctp##BITS##q((uint32_t)n));                                        \
    }                                                                                               \
    static inline V nst_fill_n_##S(V v, int n, TYPE x) {                                            \
        return vpselq_##K##BITS(v, vdupq_n_##K##BITS(x), vctp##BITS##q((uint32_t)n));               \
    }
NST_NARROW(i8x16, int8_t, int8x16_t, 8, s)
NST_NARROW(u8x16, uint8_t, uint8x16_t, 8, u)
NST_NARROW(i16x8, int16_t, int16x8_t, 16, s)
NST_NARROW(u16x8, uint16_t, uint16x8_t, 16, u)
#undef NST_NARROW
#endif

#ifdef __cplusplus
}
#endif

#endif
