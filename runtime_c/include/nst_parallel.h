/* nst_parallel.h - parts of a kernel, or whole kernels, side by side on several cores.
 *
 * Code that was generated with --threads N cuts its work into N parts, numbered from 0, and hands them to
 * `nst_parallel`.  What runs them is chosen by NST_PARALLEL (nst_config.h): the caller alone, one part after
 * another; OpenMP; or two functions that a port supplies.  Which core runs which part does not matter to the
 * result: no part writes what another one reads or writes, scratch memory included, and each sums in the order it
 * has alone.  A part may itself call `nst_parallel`; its parts are then run one after another.
 */
#ifndef NST_PARALLEL_H
#define NST_PARALLEL_H

#include <stddef.h>
#include <stdint.h>

#include "nst_config.h"

#if NST_PARALLEL == NST_PARALLEL_OPENMP
#include <omp.h>
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* One part of some work.  May be called from any core; what it leaves in memory is seen after the join. */
typedef void (*nst_part)(void *context, uint32_t part);

#if NST_PARALLEL == NST_PARALLEL_PORT
/* What a port supplies (port/host: POSIX threads; port/rp2: the second core of an RP2040 or RP2350).
 *
 * `fork` starts parts 1, 2, ..., k of the work `run` on other cores, one on each, and returns k, at most parts - 1: 0
 * where no other core is free, as when it is called from within a part, or by two threads at once.  When k is not 0,
 * the caller calls `join`, which returns once those k parts have run.  `context` lives until then. */
uint32_t nst_port_fork(nst_part run, void *context, uint32_t parts);
void nst_port_join(void);
#endif

/* Run parts 0 .. parts-1; return when all have run. */
static inline void nst_parallel(nst_part run, void *context, uint32_t parts) {
#if NST_PARALLEL == NST_PARALLEL_OPENMP
    if (omp_in_parallel() == 0) {
        _Pragma("omp parallel for num_threads((int)parts) schedule(static, 1)")
        for (int part = 0; part < (int)parts; ++part) {
            run(context, (uint32_t)part);
        }
        return;
    }
#elif NST_PARALLEL == NST_PARALLEL_PORT
    const uint32_t elsewhere = nst_port_fork(run, context, parts);
    run(context, 0u);
    for (uint32_t part = elsewhere + 1u; part < parts; ++part) {
        run(context, part);
    }
    if (elsewhere != 0u) {
        nst_port_join();
    }
#endif
#if NST_PARALLEL != NST_PARALLEL_PORT
    for (uint32_t part = 0; part < parts; ++part) {
        run(context, part);
    }
#endif
}

/* The first of the iterations 0 .. extent-1 that belong to a part; they end where the next part's begin. */
static inline ptrdiff_t nst_part_start(ptrdiff_t extent, uint32_t parts, uint32_t part) {
    const ptrdiff_t whole = extent / (ptrdiff_t)parts, rest = extent % (ptrdiff_t)parts;
    const ptrdiff_t at = (ptrdiff_t)part;
    return whole * at + (at < rest ? at : rest);
}

#ifdef __cplusplus
}
#endif

#endif /* NST_PARALLEL_H */
