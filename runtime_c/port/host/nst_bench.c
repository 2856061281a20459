/* nst_bench.c - timing of a model on the host with the monotonic clock. */
#define _POSIX_C_SOURCE 200809L

#include "nst_bench.h"

#include <pthread.h>
#include <stdlib.h>
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
        if (status != NST_OK && status != NST_DONE) {
            return status;
        }
        if (current < model->node_count) {
            ns[current] += now_ns() - start;
        }
        if (status == NST_DONE) {
            return NST_OK;
        }
    }
}

typedef struct call {
    nst_status (*run)(void *arena);
    void *arena;
    nst_status status;
} call;

static void *call_run(void *user) {
    call *const it = (call *)user;
    it->status = it->run(it->arena);
    return NULL;
}

static nst_status do_nothing(void *arena) {
    (void)arena;
    return NST_OK;
}

enum { STACK_BYTES = 8 << 20, PAINT = 0xA5 };

/* The bytes of a painted stack that a thread used which made the call; UINT32_MAX without a thread. */
static uint32_t used_stack(uint8_t *stack, call *it) {
    pthread_attr_t attributes;
    pthread_t thread;
    uint32_t untouched = 0u;
    memset(stack, PAINT, STACK_BYTES);
    if (pthread_attr_init(&attributes) != 0) {
        return UINT32_MAX;
    }
    if (pthread_attr_setstack(&attributes, stack, STACK_BYTES) != 0 ||
        pthread_create(&thread, &attributes, call_run, it) != 0) {
        (void)pthread_attr_destroy(&attributes);
        return UINT32_MAX;
    }
    (void)pthread_join(thread, NULL);
    (void)pthread_attr_destroy(&attributes);
    while (untouched < (uint32_t)STACK_BYTES && stack[untouched] == PAINT) {
        ++untouched;
    }
    return (uint32_t)STACK_BYTES - untouched;
}

nst_status nst_stack(const nst_model *model, nst_status (*run)(void *arena), void *arena,
                     const uint8_t *inputs, uint32_t *bytes) {
    call nothing = {do_nothing, NULL, NST_OK};
    call it = {run, arena, NST_OK};
    void *stack = NULL;
    uint32_t empty, used;
    *bytes = UINT32_MAX;
    if (posix_memalign(&stack, 4096u, STACK_BYTES) != 0) {
        return NST_OK;
    }
    fill_inputs(model, arena, inputs);
    empty = used_stack((uint8_t *)stack, &nothing);
    used = used_stack((uint8_t *)stack, &it);
    free(stack);
    if (empty != UINT32_MAX && used != UINT32_MAX) {
        *bytes = used > empty ? used - empty : 0u;
    }
    return it.status;
}
