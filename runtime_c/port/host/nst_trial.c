/* nst_trial.c - timing of single kernels with the monotonic clock. */
#define _GNU_SOURCE /* RUSAGE_THREAD */

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

uint64_t nst_trial_canary(void) {
    float sums[8] = {0.0f, 0.1f, 0.2f, 0.3f, 0.4f, 0.5f, 0.6f, 0.7f};
    volatile float sink;
    const uint64_t start = now_ns();
    uint64_t stop;
    int i, k;
    for (i = 0; i < 10000; i++) {
        for (k = 0; k < 8; k++) {
            sums[k] = sums[k] * 0.999f + 0.001f;
        }
    }
    sink = sums[0] + sums[1] + sums[2] + sums[3] + sums[4] + sums[5] + sums[6] + sums[7];
    stop = now_ns();
    (void)sink;
    return stop - start;
}
