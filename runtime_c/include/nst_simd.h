/* nst_simd.h - vector helpers that generated kernels call: partial loads and stores, NaN-true max and
 * min, and exp, sigmoid, tanh, erf, log and log1p in vectors.
 *
 * Each instruction set defines the same primitives; the functions on top are written once.
 * Accuracy, over all inputs (float32): exp 1.5 ULP, sigmoid 2.5, tanh 2, erf 2, log 1.5, log1p 2.
 * Signed zeros, denormals, infinities and NaN are those of <math.h>.
 * exp: argument reduction and polynomial of Cephes expf; tanh: Cephes tanhf (S. Moshier, netlib).
 * erf: x + x p(x^2) up to 1.15, 1 - q(|x|)^8 beyond, where q fits the eighth root of erfc.
 * log: x = 2^n (1 + f) with 1 + f from sqrt(1/2) to sqrt(2); n ln 2 + f - f^2 / 2 + f^3 p(f).
 * p and q are minimax fits of the relative error of the result.
 */
#ifndef NST_SIMD_H
#define NST_SIMD_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>

#include "nst.h"
#include "nst_integer.h"

#if defined(__AVX2__) || defined(__AVX512F__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__) && defined(__AVX512F__)
#define NST_VECTOR_REGISTER "v"
#elif defined(__GNUC__) && defined(__AVX2__)
#define NST_VECTOR_REGISTER "x"
#elif defined(__GNUC__) && defined(__aarch64__)
#define NST_VECTOR_REGISTER "w"
#endif

/* Keep a loaded vector in a register: compilers otherwise fold the load into each of its uses.
 * Load constants where `vector` is known: compilers otherwise load them before all loops around, and
 * spill the accumulators of those loops. */
#if defined(NST_VECTOR_REGISTER)
#define NST_IN_REGISTER(vector) __asm__("" : "+" NST_VECTOR_REGISTER(vector))
#define NST_LOAD_LATE(table, vector) __asm__("" : "+r"(table) : NST_VECTOR_REGISTER(vector))
/* Load a constant anew in each iteration: held across other loops it takes a register from them. */
#define NST_LOADED_HERE(vector) __asm__ volatile("" : "+" NST_VECTOR_REGISTER(vector))
#else
#define NST_IN_REGISTER(vector) (void)0
#define NST_LOAD_LATE(table, vector) (void)0
#define NST_LOADED_HERE(vector) (void)0
#endif

/* Elements of a vector that lie before an end: `left` limited to 0..most. */
static inline int nst_clamp_count(ptrdiff_t left, int most) {
    return left >= (ptrdiff_t)most ? most : (left <= 0 ? 0 : (int)left);
}

/* exp, sigmoid, tanh, erf, log and log1p for vector type V of suffix S, from the primitives
 * nst_v*_S(set1, add, sub, mul, div, fma, min, max, round, abs, copysign, pow2 scale, select less, equal;
 * exponent, fraction: x = fraction 2^exponent, 1 <= fraction < 2, of a positive finite x). */
#define NST_VECTOR_MATH(S, V)                                                                       \
    static inline V nst_exp_##S(V x) {                                                              \
        static const float constants[] = {                                                          \
            -104.0f, 89.0f, 1.44269504f, -0.693359375f,                                             \
            2.12194440e-4f,                                                                         \
            1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f,                 \
            1.6666665459e-1f, 5.0000001201e-1f,                                                     \
        };                                                                                          \
        const float *c = constants;                                                                 \
        NST_LOAD_LATE(c, x);                                                                        \
        const V y = nst_vmin_##S(nst_vset1_##S(c[1]), nst_vmax_##S(nst_vset1_##S(c[0]), x));        \
        const V n = nst_vround_##S(nst_vmul_##S(y, nst_vset1_##S(c[2])));                           \
        const V r = nst_vfma_##S(n, nst_vset1_##S(c[4]), nst_vfma_##S(n, nst_vset1_##S(c[3]), y));  \
        V p = nst_vset1_##S(c[5]);                                                                  \
        p = nst_vfma_##S(p, r, nst_vset1_##S(c[6]));                                                \
        p = nst_vfma_##S(p, r, nst_vset1_##S(c[7]));                                                \
        p = nst_vfma_##S(p, r, nst_vset1_##S(c[8]));                                                \
        p = nst_vfma_##S(p, r, nst_vset1_##S(c[9]));                                                \
        p = nst_vfma_##S(p, r, nst_vset1_##S(c[10]));                                               \
        p = nst_vfma_##S(p, nst_vmul_##S(r, r), r);                                                 \
        return nst_vscale_##S(nst_vadd_##S(p, nst_vset1_##S(1.0f)), n);                             \
    }                                                                                               \
    /* exp of -|x| cannot overflow: e / (1 + e) for negative x, 1 / (1 + e) for others. */          \
    static inline V nst_sigmoid_##S(V x) {                                                          \
        const V one = nst_vset1_##S(1.0f), zero = nst_vset1_##S(0.0f);                              \
        const V e = nst_exp_##S(nst_vsub_##S(zero, nst_vabs_##S(x)));                               \
        return nst_vdiv_##S(nst_vselect_lt_##S(x, zero, e, one), nst_vadd_##S(one, e));             \
    }                                                                                               \
    static inline V nst_tanh_##S(V x) {                                                             \
        static const float constants[] = {                                                          \
            -5.70498872745e-3f, 2.06390887954e-2f, -5.37397155531e-2f, 1.33314422036e-1f,           \
            -3.33332819422e-1f,                                                                     \
            0.625f, 2.0f,                                                                           \
        };                                                                                          \
        const float *c = constants;                                                                 \
        NST_LOAD_LATE(c, x);                                                                        \
        const V a = nst_vabs_##S(x), z = nst_vmul_##S(x, x), one = nst_vset1_##S(1.0f);             \
        V p = nst_vset1_##S(c[0]);                                                                  \
        p = nst_vfma_##S(p, z, nst_vset1_##S(c[1]));                                                \
        p = nst_vfma_##S(p, z, nst_vset1_##S(c[2]));                                                \
        p = nst_vfma_##S(p, z, nst_vset1_##S(c[3]));                                                \
        p = nst_vfma_##S(p, z, nst_vset1_##S(c[4]));                                                \
        const V near0 = nst_vfma_##S(nst_vmul_##S(p, z), x, x);                                     \
        const V e = nst_exp_##S(nst_vadd_##S(a, a));                                                \
        const V far0 = nst_vsub_##S(one, nst_vdiv_##S(nst_vset1_##S(c[6]), nst_vadd_##S(e, one)));  \
        const V y = nst_vselect_lt_##S(a, nst_vset1_##S(c[5]), near0, far0);                        \
        return nst_vcopysign_##S(y, x); /* near0 of -0 is 0 */                                      \
    }                                                                                               \
    static inline V nst_erf_##S(V x) {                                                              \
        static const float constants[] = {                                                          \
            6.85640989e-5f, -7.68886821e-4f, 5.14947763e-3f, -2.68321633e-2f,                       \
            1.12830408e-1f, -3.76125753e-1f, 1.28379151e-1f,                                        \
            1.64473837e-4f, -2.62849429e-3f, 1.36288106e-2f, -1.29993772e-2f,                       \
            -5.93532100e-2f, -1.46443576e-1f, 1.00121212f,                                          \
            3.92f, 1.15f,                                                                           \
        };                                                                                          \
        const float *c = constants;                                                                 \
        NST_LOAD_LATE(c, x);                                                                        \
        const V a = nst_vabs_##S(x), z = nst_vmul_##S(x, x), one = nst_vset1_##S(1.0f);             \
        V p = nst_vset1_##S(c[0]);                                                                  \
        p = nst_vfma_##S(p, z, nst_vset1_##S(c[1]));                                                \
        p = nst_vfma_##S(p, z, nst_vset1_##S(c[2]));                                                \
        p = nst_vfma_##S(p, z, nst_vset1_##S(c[3]));                                                \
        p = nst_vfma_##S(p, z, nst_vset1_##S(c[4]));                                                \
        p = nst_vfma_##S(p, z, nst_vset1_##S(c[5]));                                                \
        p = nst_vfma_##S(p, z, nst_vset1_##S(c[6]));                                                \
        const V near0 = nst_vfma_##S(p, x, x);                                                      \
        const V b = nst_vmin_##S(nst_vset1_##S(c[14]), a); /* beyond, erf is 1 */                   \
        V q = nst_vset1_##S(c[7]);                                                                  \
        q = nst_vfma_##S(q, b, nst_vset1_##S(c[8]));                                                \
        q = nst_vfma_##S(q, b, nst_vset1_##S(c[9]));                                                \
        q = nst_vfma_##S(q, b, nst_vset1_##S(c[10]));                                               \
        q = nst_vfma_##S(q, b, nst_vset1_##S(c[11]));                                               \
        q = nst_vfma_##S(q, b, nst_vset1_##S(c[12]));                                               \
        q = nst_vfma_##S(q, b, nst_vset1_##S(c[13]));                                               \
        q = nst_vmul_##S(q, q);                                                                     \
        q = nst_vmul_##S(q, q);                                                                     \
        const V far0 = nst_vcopysign_##S(nst_vsub_##S(one, nst_vmul_##S(q, q)), x);                 \
        return nst_vselect_lt_##S(a, nst_vset1_##S(c[15]), near0, far0);                            \
    }                                                                                               \
    static inline V nst_log_##S(V x) {                                                              \
        static const float constants[] = {                                                          \
            -7.63449296e-2f, 1.27615750e-1f, -1.31601825e-1f, 1.42017588e-1f,                       \
            -1.66233569e-1f, 2.00012267e-1f, -2.50008196e-1f, 3.33333313e-1f,                       \
            -2.12194440e-4f, 0.693359375f, -0.5f, 0.5f,                                             \
            1.41421356f,                                                                            \
            INFINITY, -INFINITY, NAN,                                                               \
        };                                                                                          \
        const float *c = constants;                                                                 \
        NST_LOAD_LATE(c, x);                                                                        \
        const V zero = nst_vset1_##S(0.0f), one = nst_vset1_##S(1.0f);                              \
        const V m = nst_vfraction_##S(x), e = nst_vexponent_##S(x), root2 = nst_vset1_##S(c[12]);   \
        const V n = nst_vselect_lt_##S(m, root2, e, nst_vadd_##S(e, one));                          \
        const V half = nst_vmul_##S(m, nst_vset1_##S(c[11]));                                       \
        const V f = nst_vsub_##S(nst_vselect_lt_##S(m, root2, m, half), one);                       \
        const V z = nst_vmul_##S(f, f);                                                             \
        V p = nst_vset1_##S(c[0]);                                                                  \
        p = nst_vfma_##S(p, f, nst_vset1_##S(c[1]));                                                \
        p = nst_vfma_##S(p, f, nst_vset1_##S(c[2]));                                                \
        p = nst_vfma_##S(p, f, nst_vset1_##S(c[3]));                                                \
        p = nst_vfma_##S(p, f, nst_vset1_##S(c[4]));                                                \
        p = nst_vfma_##S(p, f, nst_vset1_##S(c[5]));                                                \
        p = nst_vfma_##S(p, f, nst_vset1_##S(c[6]));                                                \
        p = nst_vfma_##S(p, f, nst_vset1_##S(c[7]));                                                \
        p = nst_vfma_##S(n, nst_vset1_##S(c[8]), nst_vmul_##S(nst_vmul_##S(f, z), p));              \
        p = nst_vadd_##S(f, nst_vfma_##S(z, nst_vset1_##S(c[10]), p));                              \
        p = nst_vfma_##S(n, nst_vset1_##S(c[9]), p);                                                \
        const V known = nst_vselect_lt_##S(x, nst_vset1_##S(c[13]), p, x); /* infinity, NaN */      \
        const V other = nst_vselect_lt_##S(x, zero, nst_vset1_##S(c[15]), known);                   \
        return nst_vselect_eq_##S(x, zero, nst_vset1_##S(c[14]), other);                            \
    }                                                                                               \
    /* log(u) of the rounded u = 1 + x, and what the rounding lost, over u. */                      \
    static inline V nst_log1p_##S(V x) {                                                            \
        static const float constants[] = {                                                          \
            1e-30f, 1e9f, 2e-8f,                                                                    \
        };                                                                                          \
        const float *c = constants;                                                                 \
        NST_LOAD_LATE(c, x);                                                                        \
        const V one = nst_vset1_##S(1.0f), u = nst_vadd_##S(one, x), log_u = nst_log_##S(u);        \
        const V lost = nst_vsub_##S(x, nst_vsub_##S(u, one));                                       \
        const V more = nst_vdiv_##S(lost, nst_vmax_##S(u, nst_vset1_##S(c[0]))); /* u may be 0 */   \
        const V y = nst_vselect_lt_##S(x, nst_vset1_##S(c[1]), nst_vadd_##S(log_u, more), log_u);   \
        return nst_vselect_lt_##S(nst_vabs_##S(x), nst_vset1_##S(c[2]), x, y);                      \
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
#pragma GCC diagnostic ignored "-Wsign-conversion" /* gcc -O0: in the intrinsics' macros */
#endif
static inline __m512 nst_floor_f32x16(__m512 a) { return _mm512_roundscale_ps(a, 9); }
static inline __m512 nst_ceil_f32x16(__m512 a) { return _mm512_roundscale_ps(a, 10); }
static inline __m512 nst_round_f32x16(__m512 a) { return _mm512_roundscale_ps(a, 8); }
static inline __m512 nst_vexponent_f32x16(__m512 x) { return _mm512_getexp_ps(x); }
static inline __m512 nst_vfraction_f32x16(__m512 x) {
    return _mm512_getmant_ps(x, _MM_MANT_NORM_1_2, _MM_MANT_SIGN_zero);
}
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
/* x, denormals times 2^23. */
static inline __m256 nst_vnormal_f32x8(__m256 x) {
    const __m256 least = _mm256_set1_ps(1.17549435e-38f);
    return nst_vselect_lt_f32x8(x, least, _mm256_mul_ps(x, _mm256_set1_ps(8388608.0f)), x);
}
static inline __m256 nst_vexponent_f32x8(__m256 x) {
    const __m256i bits = _mm256_srli_epi32(_mm256_castps_si256(nst_vnormal_f32x8(x)), 23);
    const __m256 e = _mm256_cvtepi32_ps(_mm256_sub_epi32(bits, _mm256_set1_epi32(127)));
    const __m256 less = _mm256_sub_ps(e, _mm256_set1_ps(23.0f));
    return nst_vselect_lt_f32x8(x, _mm256_set1_ps(1.17549435e-38f), less, e);
}
static inline __m256 nst_vfraction_f32x8(__m256 x) {
    const __m256 one = _mm256_set1_ps(1.0f), mask = _mm256_castsi256_ps(_mm256_set1_epi32(0x007fffff));
    return _mm256_or_ps(_mm256_and_ps(nst_vnormal_f32x8(x), mask), one);
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
/* x, denormals times 2^23. */
static inline float32x4_t nst_vnormal_f32x4(float32x4_t x) {
    const float32x4_t least = vdupq_n_f32(1.17549435e-38f);
    return nst_vselect_lt_f32x4(x, least, vmulq_n_f32(x, 8388608.0f), x);
}
static inline float32x4_t nst_vexponent_f32x4(float32x4_t x) {
    const int32x4_t bits = vreinterpretq_s32_f32(nst_vnormal_f32x4(x));
    const float32x4_t e = vcvtq_f32_s32(vsubq_s32(vshrq_n_s32(bits, 23), vdupq_n_s32(127)));
    const float32x4_t less = vsubq_f32(e, vdupq_n_f32(23.0f));
    return nst_vselect_lt_f32x4(x, vdupq_n_f32(1.17549435e-38f), less, e);
}
static inline float32x4_t nst_vfraction_f32x4(float32x4_t x) {
    return vbslq_f32(vdupq_n_u32(0x007fffffu), nst_vnormal_f32x4(x), vdupq_n_f32(1.0f));
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

/* Helium has neither division nor roots in vectors, and takes denormal numbers for zero. */
#if defined(__ARM_FEATURE_MVE) && (__ARM_FEATURE_MVE & 2)
static inline float32x4_t nst_vset1_f32x4(float a) { return vdupq_n_f32(a); }
static inline float32x4_t nst_vadd_f32x4(float32x4_t a, float32x4_t b) { return vaddq_f32(a, b); }
static inline float32x4_t nst_vsub_f32x4(float32x4_t a, float32x4_t b) { return vsubq_f32(a, b); }
static inline float32x4_t nst_vmul_f32x4(float32x4_t a, float32x4_t b) { return vmulq_f32(a, b); }
/* b where it is a NaN: vminnm and vmaxnm would give a. */
static inline float32x4_t nst_vmin_f32x4(float32x4_t a, float32x4_t b) {
    return vpselq_f32(a, b, vcmpgtq_f32(b, a));
}
static inline float32x4_t nst_vmax_f32x4(float32x4_t a, float32x4_t b) {
    return vpselq_f32(a, b, vcmpgtq_f32(a, b));
}
static inline float32x4_t nst_vfma_f32x4(float32x4_t a, float32x4_t b, float32x4_t c) {
    return vfmaq_f32(c, a, b);
}
static inline float32x4_t nst_vdiv_f32x4(float32x4_t a, float32x4_t b) {
    float x[4], y[4];
    vst1q_f32(x, a);
    vst1q_f32(y, b);
    for (int i = 0; i < 4; ++i) {
        x[i] /= y[i];
    }
    return vld1q_f32(x);
}
static inline float32x4_t nst_map_f32x4(float32x4_t x, float (*f)(float)) {
    float t[4];
    vst1q_f32(t, x);
    for (int i = 0; i < 4; ++i) {
        t[i] = f(t[i]);
    }
    return vld1q_f32(t);
}
static inline float32x4_t nst_vsqrt_f32x4(float32x4_t x) { return nst_map_f32x4(x, sqrtf); }
static inline float32x4_t nst_vround_f32x4(float32x4_t a) { return vrndnq_f32(a); }
static inline float32x4_t nst_vabs_f32x4(float32x4_t a) { return vabsq_f32(a); }
static inline float32x4_t nst_vpow2_f32x4(int32x4_t n) {
    return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(n, vdupq_n_s32(127)), 23));
}
static inline float32x4_t nst_vscale_f32x4(float32x4_t a, float32x4_t n) {
    const int32x4_t whole = vcvtq_s32_f32(n), half = vshrq_n_s32(whole, 1);
    return vmulq_f32(vmulq_f32(a, nst_vpow2_f32x4(half)), nst_vpow2_f32x4(vsubq_s32(whole, half)));
}
/* Bits of b where those of `mask` are set, of a elsewhere. */
static inline float32x4_t nst_vbits_f32x4(uint32x4_t mask, float32x4_t a, float32x4_t b) {
    const uint32x4_t x = vreinterpretq_u32_f32(a), y = vreinterpretq_u32_f32(b);
    return vreinterpretq_f32_u32(vorrq_u32(vbicq_u32(x, mask), vandq_u32(y, mask)));
}
static inline float32x4_t nst_vcopysign_f32x4(float32x4_t a, float32x4_t s) {
    return nst_vbits_f32x4(vdupq_n_u32(0x80000000u), a, s);
}
/* Of its conditions, lt and le hold for a NaN; gt and ge do not. */
static inline float32x4_t nst_vselect_lt_f32x4(float32x4_t a, float32x4_t b, float32x4_t x, float32x4_t y) {
    return vpselq_f32(x, y, vcmpgtq_f32(b, a));
}
static inline float32x4_t nst_vselect_le_f32x4(float32x4_t a, float32x4_t b, float32x4_t x, float32x4_t y) {
    return vpselq_f32(x, y, vcmpgeq_f32(b, a));
}
static inline float32x4_t nst_vselect_eq_f32x4(float32x4_t a, float32x4_t b, float32x4_t x, float32x4_t y) {
    return vpselq_f32(x, y, vcmpeqq_f32(a, b));
}
static inline float32x4_t nst_vexponent_f32x4(float32x4_t x) {
    const int32x4_t bits = vreinterpretq_s32_f32(x);
    return vcvtq_f32_s32(vsubq_s32(vshrq_n_s32(bits, 23), vdupq_n_s32(127)));
}
static inline float32x4_t nst_vfraction_f32x4(float32x4_t x) {
    return nst_vbits_f32x4(vdupq_n_u32(0x007fffffu), vdupq_n_f32(1.0f), x);
}
static inline float32x4_t nst_max_f32x4(float32x4_t a, float32x4_t b) {
    return vpselq_f32(a, nst_vmax_f32x4(a, b), vcmpneq_f32(a, a));
}
static inline float32x4_t nst_min_f32x4(float32x4_t a, float32x4_t b) {
    return vpselq_f32(a, nst_vmin_f32x4(a, b), vcmpneq_f32(a, a));
}
static inline float32x4_t nst_load_n_f32x4(const float *p, int n) {
    return vld1q_z_f32(p, nst_lanes_i32x4(n));
}
static inline void nst_store_n_f32x4(float *p, float32x4_t v, int n) {
    NST_STORES_BEFORE();
    vst1q_p_f32(p, v, nst_lanes_i32x4(n));
}
static inline float32x4_t nst_fill_n_f32x4(float32x4_t v, int n, float x) {
    return vpselq_f32(v, vdupq_n_f32(x), nst_lanes_i32x4(n));
}
/* Sum, largest and smallest of the lanes; a NaN lane gives NaN. */
static inline float nst_hsum_f32x4(float32x4_t v) {
    return (vgetq_lane_f32(v, 0) + vgetq_lane_f32(v, 1)) + (vgetq_lane_f32(v, 2) + vgetq_lane_f32(v, 3));
}
static inline float nst_hmax_f32x4(float32x4_t v) {
    return vcmpneq_f32(v, v) != 0 ? NAN : vmaxnmvq_f32(-INFINITY, v);
}
static inline float nst_hmin_f32x4(float32x4_t v) {
    return vcmpneq_f32(v, v) != 0 ? NAN : vminnmvq_f32(INFINITY, v);
}
NST_VECTOR_MATH(f32x4, float32x4_t)
#endif

#ifdef __cplusplus
}
#endif

#endif /* NST_SIMD_H */
