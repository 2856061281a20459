/* nst_bench.h - timing of a model on the host. */
#ifndef NST_BENCH_H
#define NST_BENCH_H

#include "nst.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Copy `inputs` (all inputs of the model, one after another) into the arena and run the model, `runs`
 * times; write the time of each run alone to `ns`.  Stops at the first status that is not NST_OK. */
nst_status nst_bench(const nst_model *model, nst_status (*run)(void *arena), void *arena,
                     const uint8_t *inputs, uint32_t runs, uint64_t *ns);

/* Run once and add the time of each node, in nanoseconds, to `ns[node]`. */
nst_status nst_profile(const nst_model *model, void *arena, const uint8_t *inputs, uint64_t *ns);

/* Run once on a painted stack of its own and write the bytes of it that were used to `bytes`: those of
 * a thread that calls `run`, less those of a thread that calls a function that does nothing. */
nst_status nst_stack(const nst_model *model, nst_status (*run)(void *arena), void *arena,
                     const uint8_t *inputs, uint32_t *bytes);

#ifdef __cplusplus
}
#endif

#endif /* NST_BENCH_H */
