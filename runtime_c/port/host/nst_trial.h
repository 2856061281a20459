/* nst_trial.h - timing of single kernels on the host, for tuning. */
#ifndef NST_TRIAL_H
#define NST_TRIAL_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A kernel, called with pointers to its operands. */
typedef void (*nst_trial_kernel)(void *const *operands);

/* Call `kernel` `runs` times; return the nanoseconds all calls took together.  `*preempted` is 1 when the
 * system took the processor away meanwhile, else 0. */
uint64_t nst_trial_time(nst_trial_kernel kernel, void *const *operands, uint32_t runs, int32_t *preempted);

/* Return the nanoseconds that a fixed piece of arithmetic takes, some 20 us of it: it tells how fast the
 * core is just now. */
uint64_t nst_trial_canary(void);

#ifdef __cplusplus
}
#endif

#endif /* NST_TRIAL_H */
