/* nst_trial.c - timing of single kernels with the monotonic clock. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* RUSAGE_THREAD */
#endif

#include "nst_trial.h"

#include <sys/resource.h>
#include <time.h>

#if !defined(RUSAGE_THREAD)
#define RUSAGE_THREAD RUSAGE_SELF
#endif

static uint64_t now_ns(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

static long involuntary_switches(void) {
    struct rusage usage;
    return getrusage(RUSAGE_THREAD, &usage) == 0 ? usage.ru_nivcsw : 0;
}

uint64_t nst_trial_time(nst_trial_kernel kernel, void *const *operands, uint32_t runs, int32_t *preempted) {
    const long before = involuntary_switches();
    const uint64_t start = now_ns();
    uint64_t stop;
    uint32_t i;
    for (i = 0u; i < runs; i++) {
        kernel(operands);
    }
    stop = now_ns();
    *preempted = involuntary_switches() != before;
    return stop - start;
}

/* As many independent chains of vectors as keep the arithmetic units busy: what another thread of the core
 * takes away from a kernel it takes away from these too. */
#if defined(__AVX512F__)
enum { LANES = 16 };
#elif defined(__AVX2__)
enum { LANES = 8 };
#else
enum { LANES = 4 };
#endif
enum { CHAINS = 12, STEPS = 3000 };
typedef float vector __attribute__((vector_size(4 * LANES)));

uint64_t nst_trial_canary(void) {
    vector chains[CHAINS];
    volatile float sink = 0.0f;
    const uint64_t start = now_ns();
    uint64_t stop;
    int i, k;
    for (k = 0; k < CHAINS; k++) {
        for (i = 0; i < LANES; i++) {
            chains[k][i] = (float)k * 0.1f;
        }
    }
    for (i = 0; i < STEPS; i++) {
        for (k = 0; k < CHAINS; k++) {
            chains[k] = chains[k] * 0.999f + 0.001f;
        }
    }
    for (k = 0; k < CHAINS; k++) {
        sink = sink + chains[k][0];
    }
    stop = now_ns();
    return stop - start;
}
