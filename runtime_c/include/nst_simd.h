/* nst_simd.h - vector helpers that generated kernels call: partial loads and stores, NaN-true max and
 * min, and exp, sigmoid and tanh in vectors.
 *
 * Each instruction set defines the same primitives; the functions on top are written once.
 * Accuracy, over all finite inputs: exp 1.5 ULP, sigmoid 2.5 ULP, tanh 2 ULP (float32).
 * exp: argument reduction and polynomial of Cephes expf; tanh: Cephes tanhf (S. Moshier, netlib).
 */
#ifndef NST_SIMD_H
#define NST_SIMD_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>

#include "nst.h"

#if defined(__AVX2__) || defined(__AVX512F__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Keep a loaded vector in a register: compilers otherwise fold the load into each of its uses. */
#if defined(__GNUC__) && defined(__AVX512F__)
#define NST_IN_REGISTER(vector) __asm__("" : "+v"(vector))
#elif defined(__GNUC__) && defined(__AVX2__)
#define NST_IN_REGISTER(vector) __asm__("" : "+x"(vector))
#elif defined(__GNUC__) && defined(__aarch64__)
#define NST_IN_REGISTER(vector) __asm__("" : "+w"(vector))
#else
#define NST_IN_REGISTER(vector) (void)0
#endif

/* Elements of a vector that lie before an end: `left` limited to 0..most. */
static inline int nst_clamp_count(ptrdiff_t left, int most) {
    return left >= (ptrdiff_t)most ? most : (left <= 0 ? 0 : (int)left);
}

#define NST_LOG2E 1.44269504088896341f
#define NST_LN2_HI 0.693359375f
#define NST_LN2_LO -2.12194440e-4f

/* exp, sigmoid and tanh for vector type V of suffix S, from the primitives
 * nst_v*_S(set1, add, sub, mul, div, fma, min, max, round, abs, copysign, pow2 scale, select less). */
#define NST_VECTOR_MATH(S, V)                                                                   \
    static inline V nst_exp_##S(V x) {                                                          \
        const V lo = nst_vset1_##S(-104.0f), hi = nst_vset1_##S(89.0f);                         \
        const V c = nst_vmin_##S(hi, nst_vmax_##S(lo, x));                                      \
        const V n = nst_vround_##S(nst_vmul_##S(c, nst_vset1_##S(NST_LOG2E)));                  \
        V r = nst_vfma_##S(n, nst_vset1_##S(-NST_LN2_HI), c);                                   \
        r = nst_vfma_##S(n, nst_vset1_##S(-(NST_LN2_LO)), r);                                   \
        V p = nst_vset1_##S(1.9875691500e-4f);                                                  \
        p = nst_vfma_##S(p, r, nst_vset1_##S(1.3981999507e-3f));                                \
        p = nst_vfma_##S(p, r, nst_vset1_##S(8.3334519073e-3f));                                \
        p = nst_vfma_##S(p, r, nst_vset1_##S(4.1665795894e-2f));                                \
        p = nst_vfma_##S(p, r, nst_vset1_##S(1.6666665459e-1f));                                \
        p = nst_vfma_##S(p, r, nst_vset1_##S(5.0000001201e-1f));                                \
        p = nst_vfma_##S(p, nst_vmul_##S(r, r), r);                                             \
        p = nst_vadd_##S(p, nst_vset1_##S(1.0f));                                               \
        return nst_vscale_##S(p, n);                                                            \
    }                                                                                           \
    /* exp of -|x| cannot overflow: e / (1 + e) for negative x, 1 / (1 + e) for others. */      \
    static inline V nst_sigmoid_##S(V x) {                                                      \
        const V one = nst_vset1_##S(1.0f), zero = nst_vset1_##S(0.0f);                          \
        const V e = nst_exp_##S(nst_vsub_##S(zero, nst_vabs_##S(x)));                           \
        return nst_vdiv_##S(nst_vselect_lt_##S(x, zero, e, one), nst_vadd_##S(one, e));         \
    }                                                                                           \
    static inline V nst_tanh_##S(V x) {                                                         \
        const V a = nst_vabs_##S(x), one = nst_vset1_##S(1.0f);                                 \
        const V z = nst_vmul_##S(x, x);                                                         \
        V p = nst_vset1_##S(-5.70498872745e-3f);                                                \
        p = nst_vfma_##S(p, z, nst_vset1_##S(2.06390887954e-2f));                               \
        p = nst_vfma_##S(p, z, nst_vset1_##S(-5.37397155531e-2f));                              \
        p = nst_vfma_##S(p, z, nst_vset1_##S(1.33314422036e-1f));                               \
        p = nst_vfma_##S(p, z, nst_vset1_##S(-3.33332819422e-1f));                              \
        const V near0 = nst_vfma_##S(nst_vmul_##S(p, z), x, x);                                 \
        const V e = nst_exp_##S(nst_vadd_##S(a, a));                                            \
        const V far0 = nst_vsub_##S(one, nst_vdiv_##S(nst_vset1_##S(2.0f), nst_vadd_##S(e, one))); \
        return nst_vselect_lt_##S(a, nst_vset1_##S(0.625f), near0, nst_vcopysign_##S(far0, x)); \
    }

#if defined(__AVX512F__)
static inline __m512 nst_vset1_f32x16(float a) { return _mm512_set1_ps(a); }
static inline __m512 nst_vadd_f32x16(__m512 a, __m512 b) { return _mm512_add_ps(a, b); }
static inline __m512 nst_vsub_f32x16(__m512 a, __m512 b) { return _mm512_sub_ps(a, b); }
static inline __m512 nst_vmul_f32x16(__m512 a, __m512 b) { return _mm512_mul_ps(a, b); }
static inline __m512 nst_vdiv_f32x16(__m512 a, __m512 b) { return _mm512_div_ps(a, b); }
static inline __m512 nst_vmin_f32x16(__m512 a, __m512 b) { return _mm512_min_ps(a, b); }
static inline __m512 nst_vmax_f32x16(__m512 a, __m512 b) { return _mm512_max_ps(a, b); }
static inline __m512 nst_vfma_f32x16(__m512 a, __m512 b, __m512 c) { return _mm512_fmadd_ps(a, b, c); }
#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wsign-conversion" /* gcc -O0: in the intrinsic's macro */
#endif
static inline __m512 nst_floor_f32x16(__m512 a) { return _mm512_roundscale_ps(a, 9); }
static inline __m512 nst_ceil_f32x16(__m512 a) { return _mm512_roundscale_ps(a, 10); }
static inline __m512 nst_round_f32x16(__m512 a) { return _mm512_roundscale_ps(a, 8); }
#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif
static inline __m512 nst_vround_f32x16(__m512 a) { return nst_round_f32x16(a); }
static inline __m512 nst_vabs_f32x16(__m512 a) { return _mm512_abs_ps(a); }
static inline __m512 nst_vscale_f32x16(__m512 a, __m512 n) { return _mm512_scalef_ps(a, n); }
static inline __m512 nst_vcopysign_f32x16(__m512 a, __m512 s) {
    const __m512i sign = _mm512_set1_epi32(INT32_MIN);
    return _mm512_castsi512_ps(_mm512_ternarylogic_epi32(sign, _mm512_castps_si512(s),
                                                         _mm512_castps_si512(a), 0xca));
}
static inline __m512 nst_vselect_lt_f32x16(__m512 a, __m512 b, __m512 x, __m512 y) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), y, x);
}
static inline __m512 nst_vselect_le_f32x16(__m512 a, __m512 b, __m512 x, __m512 y) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LE_OQ), y, x);
}
static inline __m512 nst_vselect_eq_f32x16(__m512 a, __m512 b, __m512 x, __m512 y) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ), y, x);
}
static inline __m512 nst_max_f32x16(__m512 a, __m512 b) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), _mm512_max_ps(a, b), a);
}
static inline __m512 nst_min_f32x16(__m512 a, __m512 b) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), _mm512_min_ps(a, b), a);
}
static inline __m512 nst_load_n_f32x16(const float *p, int n) {
    return _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1u), p);
}
static inline void nst_store_n_f32x16(float *p, __m512 v, int n) {
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1u), v);
}
/* The first n lanes of v, x in the others. */
static inline __m512 nst_fill_n_f32x16(__m512 v, int n, float x) {
    return _mm512_mask_blend_ps((__mmask16)((1u << n) - 1u), _mm512_set1_ps(x), v);
}
static inline __m512 nst_map_f32x16(__m512 x, float (*f)(float)) {
    float t[16];
    _mm512_storeu_ps(t, x);
    for (int i = 0; i < 16; ++i) {
        t[i] = f(t[i]);
    }
    return _mm512_loadu_ps(t);
}
/* Sum, largest and smallest of the lanes; a NaN lane gives NaN. */
static inline float nst_hsum_f32x16(__m512 v) { return _mm512_reduce_add_ps(v); }
static inline float nst_hmax_f32x16(__m512 v) {
    return _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q) != 0 ? NAN : _mm512_reduce_max_ps(v);
}
static inline float nst_hmin_f32x16(__m512 v) {
    return _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q) != 0 ? NAN : _mm512_reduce_min_ps(v);
}
NST_VECTOR_MATH(f32x16, __m512)
#endif

#if defined(__AVX2__) && defined(__FMA__)
static inline __m256 nst_vset1_f32x8(float a) { return _mm256_set1_ps(a); }
static inline __m256 nst_vadd_f32x8(__m256 a, __m256 b) { return _mm256_add_ps(a, b); }
static inline __m256 nst_vsub_f32x8(__m256 a, __m256 b) { return _mm256_sub_ps(a, b); }
static inline __m256 nst_vmul_f32x8(__m256 a, __m256 b) { return _mm256_mul_ps(a, b); }
static inline __m256 nst_vdiv_f32x8(__m256 a, __m256 b) { return _mm256_div_ps(a, b); }
static inline __m256 nst_vmin_f32x8(__m256 a, __m256 b) { return _mm256_min_ps(a, b); }
static inline __m256 nst_vmax_f32x8(__m256 a, __m256 b) { return _mm256_max_ps(a, b); }
static inline __m256 nst_vfma_f32x8(__m256 a, __m256 b, __m256 c) { return _mm256_fmadd_ps(a, b, c); }
static inline __m256 nst_vround_f32x8(__m256 a) { return _mm256_round_ps(a, 8); }
static inline __m256 nst_abs_f32x8(__m256 a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
static inline __m256 nst_vabs_f32x8(__m256 a) { return nst_abs_f32x8(a); }
static inline __m256 nst_vpow2_f32x8(__m256i n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}
/* a * 2^n in two steps, so that results down to the smallest denormal and up to infinity are right. */
static inline __m256 nst_vscale_f32x8(__m256 a, __m256 n) {
    const __m256i whole = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(whole, 1);
    const __m256 first = _mm256_mul_ps(a, nst_vpow2_f32x8(half));
    return _mm256_mul_ps(first, nst_vpow2_f32x8(_mm256_sub_epi32(whole, half)));
}
static inline __m256 nst_vcopysign_f32x8(__m256 a, __m256 s) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return _mm256_or_ps(_mm256_andnot_ps(sign, a), _mm256_and_ps(sign, s));
}
static inline __m256 nst_vselect_lt_f32x8(__m256 a, __m256 b, __m256 x, __m256 y) {
    return _mm256_blendv_ps(y, x, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
}
static inline __m256 nst_vselect_le_f32x8(__m256 a, __m256 b, __m256 x, __m256 y) {
    return _mm256_blendv_ps(y, x, _mm256_cmp_ps(a, b, _CMP_LE_OQ));
}
static inline __m256 nst_vselect_eq_f32x8(__m256 a, __m256 b, __m256 x, __m256 y) {
    return _mm256_blendv_ps(y, x, _mm256_cmp_ps(a, b, _CMP_EQ_OQ));
}
static inline __m256 nst_max_f32x8(__m256 a, __m256 b) {
    return _mm256_blendv_ps(_mm256_max_ps(a, b), a, _mm256_cmp_ps(a, a, _CMP_UNORD_Q));
}
static inline __m256 nst_min_f32x8(__m256 a, __m256 b) {
    return _mm256_blendv_ps(_mm256_min_ps(a, b), a, _mm256_cmp_ps(a, a, _CMP_UNORD_Q));
}
static inline __m256i nst_mask_f32x8(int n) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), lane);
}
static inline __m256 nst_load_n_f32x8(const float *p, int n) {
    return _mm256_maskload_ps(p, nst_mask_f32x8(n));
}
static inline void nst_store_n_f32x8(float *p, __m256 v, int n) {
    _mm256_maskstore_ps(p, nst_mask_f32x8(n), v);
}
static inline __m256 nst_fill_n_f32x8(__m256 v, int n, float x) {
    return _mm256_blendv_ps(_mm256_set1_ps(x), v, _mm256_castsi256_ps(nst_mask_f32x8(n)));
}
static inline __m256 nst_map_f32x8(__m256 x, float (*f)(float)) {
    float t[8];
    _mm256_storeu_ps(t, x);
    for (int i = 0; i < 8; ++i) {
        t[i] = f(t[i]);
    }
    return _mm256_loadu_ps(t);
}
/* Sum, largest and smallest of the lanes; a NaN lane gives NaN. */
static inline float nst_hsum_f32x8(__m256 v) {
    const __m128 half = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    const __m128 pair = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)));
}
static inline float nst_hmax_f32x8(__m256 v) {
    const __m128 half = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    const __m128 pair = _mm_max_ps(half, _mm_movehl_ps(half, half));
    const float most = _mm_cvtss_f32(_mm_max_ss(pair, _mm_movehdup_ps(pair)));
    return _mm256_movemask_ps(_mm256_cmp_ps(v, v, _CMP_UNORD_Q)) != 0 ? NAN : most;
}
static inline float nst_hmin_f32x8(__m256 v) {
    const __m128 half = _mm_min_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    const __m128 pair = _mm_min_ps(half, _mm_movehl_ps(half, half));
    const float least = _mm_cvtss_f32(_mm_min_ss(pair, _mm_movehdup_ps(pair)));
    return _mm256_movemask_ps(_mm256_cmp_ps(v, v, _CMP_UNORD_Q)) != 0 ? NAN : least;
}
NST_VECTOR_MATH(f32x8, __m256)
#endif

#if defined(__aarch64__)
static inline float32x4_t nst_vset1_f32x4(float a) { return vdupq_n_f32(a); }
static inline float32x4_t nst_vadd_f32x4(float32x4_t a, float32x4_t b) { return vaddq_f32(a, b); }
static inline float32x4_t nst_vsub_f32x4(float32x4_t a, float32x4_t b) { return vsubq_f32(a, b); }
static inline float32x4_t nst_vmul_f32x4(float32x4_t a, float32x4_t b) { return vmulq_f32(a, b); }
static inline float32x4_t nst_vdiv_f32x4(float32x4_t a, float32x4_t b) { return vdivq_f32(a, b); }
static inline float32x4_t nst_vmin_f32x4(float32x4_t a, float32x4_t b) { return vminq_f32(a, b); }
static inline float32x4_t nst_vmax_f32x4(float32x4_t a, float32x4_t b) { return vmaxq_f32(a, b); }
static inline float32x4_t nst_vfma_f32x4(float32x4_t a, float32x4_t b, float32x4_t c) {
    return vfmaq_f32(c, a, b);
}
static inline float32x4_t nst_vround_f32x4(float32x4_t a) { return vrndnq_f32(a); }
static inline float32x4_t nst_vabs_f32x4(float32x4_t a) { return vabsq_f32(a); }
static inline float32x4_t nst_vpow2_f32x4(int32x4_t n) {
    return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(n, vdupq_n_s32(127)), 23));
}
static inline float32x4_t nst_vscale_f32x4(float32x4_t a, float32x4_t n) {
    const int32x4_t whole = vcvtq_s32_f32(n), half = vshrq_n_s32(whole, 1);
    return vmulq_f32(vmulq_f32(a, nst_vpow2_f32x4(half)), nst_vpow2_f32x4(vsubq_s32(whole, half)));
}
static inline float32x4_t nst_vcopysign_f32x4(float32x4_t a, float32x4_t s) {
    return vbslq_f32(vdupq_n_u32(0x80000000u), s, a);
}
static inline float32x4_t nst_vselect_lt_f32x4(float32x4_t a, float32x4_t b, float32x4_t x, float32x4_t y) {
    return vbslq_f32(vcltq_f32(a, b), x, y);
}
static inline float32x4_t nst_vselect_le_f32x4(float32x4_t a, float32x4_t b, float32x4_t x, float32x4_t y) {
    return vbslq_f32(vcleq_f32(a, b), x, y);
}
static inline float32x4_t nst_vselect_eq_f32x4(float32x4_t a, float32x4_t b, float32x4_t x, float32x4_t y) {
    return vbslq_f32(vceqq_f32(a, b), x, y);
}
static inline float32x4_t nst_load_n_f32x4(const float *p, int n) {
    float t[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    for (int i = 0; i < n; ++i) {
        t[i] = p[i];
    }
    return vld1q_f32(t);
}
static inline void nst_store_n_f32x4(float *p, float32x4_t v, int n) {
    float t[4];
    vst1q_f32(t, v);
    for (int i = 0; i < n; ++i) {
        p[i] = t[i];
    }
}
static inline float32x4_t nst_fill_n_f32x4(float32x4_t v, int n, float x) {
    float t[4];
    vst1q_f32(t, v);
    for (int i = n; i < 4; ++i) {
        t[i] = x;
    }
    return vld1q_f32(t);
}
static inline float32x4_t nst_map_f32x4(float32x4_t x, float (*f)(float)) {
    float t[4];
    vst1q_f32(t, x);
    for (int i = 0; i < 4; ++i) {
        t[i] = f(t[i]);
    }
    return vld1q_f32(t);
}
NST_VECTOR_MATH(f32x4, float32x4_t)
#endif

#ifdef __cplusplus
}
#endif

#endif /* NST_SIMD_H */
