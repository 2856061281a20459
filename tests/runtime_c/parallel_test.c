/* parallel_test.c - tests of nst_parallel.h, whatever runs the parts: `parallel_test NAME` runs one and returns 0, or prints
 * the line that failed and returns 1. */
#define _POSIX_C_SOURCE 200809L

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "nst_parallel.h"

#define CHECK(condition)                                            \
    do {                                                            \
        if (!(condition)) {                                         \
            (void)printf("line %d: %s\n", __LINE__, #condition);    \
            return 1;                                               \
        }                                                           \
    } while (0)

enum { MOST = 70 };

/* Each part writes its own element, and nothing else: the sanitizer sees a part that runs twice at once. */
typedef struct work {
    uint32_t base;
    uint32_t done[MOST];
    struct work *inner; /* work that each part hands out in turn, of its own */
    uint32_t inner_parts;
} work;

static void part(void *context, uint32_t n) {
    work *const it = (work *)context;
    it->done[n] += it->base + n;
    if (it->inner != NULL) {
        nst_parallel(part, &it->inner[n], it->inner_parts);
    }
}

static int ran(const work *it, uint32_t parts, uint32_t times) {
    for (uint32_t n = 0; n < MOST; ++n) {
        if (it->done[n] != (n < parts ? times * (it->base + n) : 0u)) {
            return 0;
        }
    }
    return 1;
}

static int test_every_part_runs_once(void) {
    for (uint32_t parts = 1; parts < MOST; ++parts) {
        work it = {1000u * parts, {0}, NULL, 0};
        for (uint32_t times = 1; times < 4; ++times) {
            nst_parallel(part, &it, parts);
            CHECK(ran(&it, parts, times));
        }
    }
    return 0;
}

static int test_parts_within_parts(void) {
    static work inner[5];
    work it = {1, {0}, inner, 3};
    for (uint32_t times = 1; times < 200; ++times) {
        nst_parallel(part, &it, 5);
        CHECK(ran(&it, 5, times));
        for (uint32_t n = 0; n < 5; ++n) {
            CHECK(ran(&inner[n], 3, times));
        }
    }
    return 0;
}

/* Threads that sleep are woken, after pauses about as long as they wait before they sleep. */
static int test_after_pauses(void) {
    work it = {3, {0}, NULL, 0};
    for (uint32_t n = 0; n < 300; ++n) {
        const struct timespec pause = {0, 1000 * (long)n};
        nst_parallel(part, &it, 3);
        CHECK(ran(&it, 3, n + 1));
        (void)nanosleep(&pause, NULL);
    }
    return 0;
}

static void *caller(void *user) {
    work *const it = (work *)user;
    for (uint32_t n = 0; n < 3000; ++n) {
        nst_parallel(part, it, 4);
    }
    return NULL;
}

static int test_several_callers(void) {
    static work jobs[4];
    pthread_t threads[4];
    for (uint32_t n = 0; n < 4; ++n) {
        jobs[n].base = 10 * n;
        CHECK(pthread_create(&threads[n], NULL, caller, &jobs[n]) == 0);
    }
    for (uint32_t n = 0; n < 4; ++n) {
        CHECK(pthread_join(threads[n], NULL) == 0);
        CHECK(ran(&jobs[n], 4, 3000));
    }
    return 0;
}

static int test_parts_cover_a_range(void) {
    for (ptrdiff_t extent = 0; extent < 200; ++extent) {
        for (uint32_t parts = 1; parts < 20; ++parts) {
            CHECK(nst_part_start(extent, parts, 0) == 0);
            CHECK(nst_part_start(extent, parts, parts) == extent);
            for (uint32_t n = 0; n < parts; ++n) {
                const ptrdiff_t size = nst_part_start(extent, parts, n + 1) - nst_part_start(extent, parts, n);
                CHECK(size == extent / (ptrdiff_t)parts || size == extent / (ptrdiff_t)parts + 1);
            }
        }
    }
    return 0;
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        int (*test)(void);
    } tests[] = {
        {"every_part_runs_once", test_every_part_runs_once},
        {"parts_within_parts", test_parts_within_parts},
        {"after_pauses", test_after_pauses},
        {"several_callers", test_several_callers},
        {"parts_cover_a_range", test_parts_cover_a_range},
    };
    for (size_t n = 0; argc > 1 && n < sizeof tests / sizeof tests[0]; ++n) {
        if (strcmp(argv[1], tests[n].name) == 0) {
            return tests[n].test();
        }
    }
    return 2;
}
