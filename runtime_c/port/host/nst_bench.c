/* nst_bench.c - timing of a model on the host with the monotonic clock. */
#define _POSIX_C_SOURCE 199309L

#include "nst_bench.h"

#include <string.h>
#include <time.h>

static uint64_t now_ns(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

static void fill_inputs(const nst_model *model, void *arena, const uint8_t *inputs) {
    for (uint32_t i = 0; i < model->input_count; ++i) {
        memcpy(nst_input(model, arena, i), inputs, model->inputs[i].bytes);
        inputs += model->inputs[i].bytes;
    }
}

nst_status nst_bench(const nst_model *model, nst_status (*run)(void *arena), void *arena,
                     const uint8_t *inputs, uint32_t runs, uint64_t *ns) {
    for (uint32_t i = 0; i < runs; ++i) {
        fill_inputs(model, arena, inputs);
        const uint64_t start = now_ns();
        const nst_status status = run(arena);
        ns[i] = now_ns() - start;
        if (status != NST_OK) {
            return status;
        }
    }
    return NST_OK;
}

nst_status nst_profile(const nst_model *model, void *arena, const uint8_t *inputs, uint64_t *ns) {
    uint32_t node = 0;
    fill_inputs(model, arena, inputs);
    for (;;) {
        const uint32_t current = node;
        const uint64_t start = now_ns();
        const nst_status status = nst_step(model, arena, &node);
        if (status != NST_OK) {
            return status == NST_DONE ? NST_OK : status;
        }
        ns[current] += now_ns() - start;
    }
}
