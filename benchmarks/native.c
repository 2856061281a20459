/* native.c - the timed loops of the benchmarks: a model's run function, and the peak of multiply-adds. */
#define _POSIX_C_SOURCE 200809L

#include <stdint.h>
#include <string.h>
#include <time.h>

#if defined(__x86_64__) || defined(_M_X64)
#define X86 1
#include <immintrin.h>
#endif

static uint64_t now_ns(int cpu) {
    struct timespec t;
    (void)clock_gettime(cpu ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

/* Copy the inputs to where the model reads them (untimed) and run it, `runs` times; stop at a status. */
int nb_time(int (*run)(void *), void *arena, uint32_t inputs, void *const *to, const void *const *from,
            const uint64_t *bytes, uint32_t runs, int cpu, uint64_t *ns) {
    for (uint32_t i = 0; i < runs; ++i) {
        for (uint32_t k = 0; k < inputs; ++k) {
            memcpy(to[k], from[k], (size_t)bytes[k]);
        }
        const uint64_t start = now_ns(cpu);
        const int status = run(arena);
        ns[i] = now_ns(cpu) - start;
        if (status != 0) {
            return status;
        }
    }
    return 0;
}

/* Run step by step, `runs` times; write the least time of each node (nst_step: 1 when all is done). */
int nb_profile(int (*step)(const void *, void *, uint32_t *), const void *model, void *arena,
               uint32_t inputs, void *const *to, const void *const *from, const uint64_t *bytes,
               uint32_t runs, int cpu, uint32_t nodes, uint64_t *ns) {
    for (uint32_t i = 0; i < runs; ++i) {
        uint32_t node = 0;
        int status = 0;
        for (uint32_t k = 0; k < inputs; ++k) {
            memcpy(to[k], from[k], (size_t)bytes[k]);
        }
        while (status == 0) {
            const uint32_t at = node;
            const uint64_t start = now_ns(cpu);
            status = step(model, arena, &node);
            const uint64_t took = now_ns(cpu) - start;
            if (at < nodes && took < ns[at]) {
                ns[at] = took;
            }
        }
        if (status != 1) {
            return status;
        }
    }
    return 0;
}

/* Each peak loop makes `n` turns of 12 independent multiply-adds and returns nanoseconds; *sink keeps them. */
#ifdef X86
__attribute__((target("avx512f,avx512vnni"))) uint64_t nb_peak_avx512vnni(uint64_t n, int cpu, float *sink) {
    const __m512i a = _mm512_set1_epi32(0x03020100), b = _mm512_set1_epi32(0x7f80ff01);
    __m512i r[12];
    for (int i = 0; i < 12; ++i) {
        r[i] = _mm512_set1_epi32(i);
    }
    const uint64_t start = now_ns(cpu);
    for (uint64_t k = 0; k < n; ++k) {
#pragma GCC unroll 12
        for (int i = 0; i < 12; ++i) {
            r[i] = _mm512_dpbusd_epi32(r[i], a, b);
        }
    }
    const uint64_t end = now_ns(cpu);
    for (int i = 1; i < 12; ++i) {
        r[0] = _mm512_add_epi32(r[0], r[i]);
    }
    *sink = (float)_mm512_reduce_add_epi32(r[0]);
    return end - start;
}
__attribute__((target("avx512f"))) uint64_t nb_peak_avx512(uint64_t n, int cpu, float *sink) {
    const __m512 a = _mm512_set1_ps(0.999f), b = _mm512_set1_ps(1e-3f);
    __m512 r[12];
    for (int i = 0; i < 12; ++i) {
        r[i] = _mm512_set1_ps((float)i);
    }
    const uint64_t start = now_ns(cpu);
    for (uint64_t k = 0; k < n; ++k) {
#pragma GCC unroll 12
        for (int i = 0; i < 12; ++i) {
            r[i] = _mm512_fmadd_ps(r[i], a, b);
        }
    }
    const uint64_t end = now_ns(cpu);
    for (int i = 1; i < 12; ++i) {
        r[0] = _mm512_add_ps(r[0], r[i]);
    }
    *sink = _mm512_reduce_add_ps(r[0]);
    return end - start;
}

__attribute__((target("avx2,fma"))) uint64_t nb_peak_avx2(uint64_t n, int cpu, float *sink) {
    const __m256 a = _mm256_set1_ps(0.999f), b = _mm256_set1_ps(1e-3f);
    float out[8];
    __m256 r[12];
    for (int i = 0; i < 12; ++i) {
        r[i] = _mm256_set1_ps((float)i);
    }
    const uint64_t start = now_ns(cpu);
    for (uint64_t k = 0; k < n; ++k) {
#pragma GCC unroll 12
        for (int i = 0; i < 12; ++i) {
            r[i] = _mm256_fmadd_ps(r[i], a, b);
        }
    }
    const uint64_t end = now_ns(cpu);
    for (int i = 1; i < 12; ++i) {
        r[0] = _mm256_add_ps(r[0], r[i]);
    }
    _mm256_storeu_ps(out, r[0]);
    *sink = out[0] + out[7];
    return end - start;
}
#endif

/* Whatever the compiler makes of 12 x 4 lanes with -O3 -march=native, for cores without loops above. */
uint64_t nb_peak_plain(uint64_t n, int cpu, float *sink) {
    float r[48];
    for (int i = 0; i < 48; ++i) {
        r[i] = (float)i;
    }
    const uint64_t start = now_ns(cpu);
    for (uint64_t k = 0; k < n; ++k) {
        for (int i = 0; i < 48; ++i) {
            r[i] = r[i] * 0.999f + 1e-3f;
        }
    }
    const uint64_t end = now_ns(cpu);
    *sink = 0.0f;
    for (int i = 0; i < 48; ++i) {
        *sink += r[i];
    }
    return end - start;
}
