/* nst_threads.c - nst_port_fork and nst_port_join with POSIX threads (compile all with -DNST_PARALLEL=2).
 *
 * Threads are started when first needed and stay.  One that has run its part waits in a loop for a while, since the next
 * part mostly comes soon; then it sleeps.  A caller that is done takes back the parts that no thread has begun: where the
 * system has no core to spare, a run takes about as long as without threads.  One run at a time uses them: another
 * one meanwhile finds no core free and does its parts itself.
 */
#define _POSIX_C_SOURCE 200809L

#include "nst_parallel.h"

#include <pthread.h>
#include <sched.h>

#if NST_PARALLEL != NST_PARALLEL_PORT
#error "compile this file, the models and nst.c with -DNST_PARALLEL=2"
#endif

/* Threads besides the callers', at most. */
#ifndef NST_PORT_WORKERS
#define NST_PORT_WORKERS 63
#endif

/* How often a thread looks for work before it sleeps (about 100 us), and the caller for the others' end before it
 * yields its core, which one of them may be waiting for. */
#ifndef NST_PORT_SPINS
#define NST_PORT_SPINS 2000
#endif
#ifndef NST_PORT_JOIN_SPINS
#define NST_PORT_JOIN_SPINS 100
#endif

/* Whether a caller takes back parts that no thread has begun.  0 makes sure that parts do run side by side, for tests. */
#ifndef NST_PORT_TAKE_BACK
#define NST_PORT_TAKE_BACK 1
#endif

/* What its thread and the caller share; 64 bytes apart from the next one's. */
typedef struct worker {
    uint32_t state;    /* atomic: IDLE, POSTED by the caller, RUNNING */
    uint32_t sleeping; /* atomic: 1 while it waits for `wake` */
    nst_part run;
    void *context;
    pthread_mutex_t mutex;
    pthread_cond_t wake;
} NST_ALIGNED(64) worker;

enum { IDLE, POSTED, RUNNING };

static worker workers[NST_PORT_WORKERS];
static uint32_t started; /* workers that run; only who holds `taken` looks */
static uint32_t forked;  /* of them, those that got a part of the work at hand */
static uint32_t taken;   /* atomic: 1 while a run uses the workers */

static void pause_core(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void await(worker *it) {
    for (uint32_t spins = 0; spins < NST_PORT_SPINS; ++spins) {
        if (__atomic_load_n(&it->state, __ATOMIC_RELAXED) == POSTED) {
            return;
        }
        pause_core();
    }
    /* Either this thread sees POSTED, or the caller sees `sleeping`: each writes before it reads. */
    (void)pthread_mutex_lock(&it->mutex);
    __atomic_store_n(&it->sleeping, 1u, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&it->state, __ATOMIC_SEQ_CST) != POSTED) {
        (void)pthread_cond_wait(&it->wake, &it->mutex);
    }
    __atomic_store_n(&it->sleeping, 0u, __ATOMIC_SEQ_CST);
    (void)pthread_mutex_unlock(&it->mutex);
}

/* Take a posted part, so that nobody else does; 0 when somebody has. */
static int take(worker *it, uint32_t state) {
    uint32_t expected = POSTED;
    return __atomic_compare_exchange_n(&it->state, &expected, state, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

static void *work(void *user) {
    worker *const it = (worker *)user;
    const uint32_t part = (uint32_t)(it - workers) + 1u;
    for (;;) {
        await(it);
        if (take(it, RUNNING)) {
            it->run(it->context, part);
            __atomic_store_n(&it->state, IDLE, __ATOMIC_RELEASE);
        }
    }
    return NULL;
}

static int start(worker *it) {
    pthread_t thread;
    if (pthread_mutex_init(&it->mutex, NULL) != 0 || pthread_cond_init(&it->wake, NULL) != 0 ||
        pthread_create(&thread, NULL, work, it) != 0) {
        return 0;
    }
    (void)pthread_detach(thread);
    return 1;
}

uint32_t nst_port_fork(nst_part run, void *context, uint32_t parts) {
    const uint32_t wanted = parts - 1u < NST_PORT_WORKERS ? parts - 1u : NST_PORT_WORKERS;
    if (__atomic_exchange_n(&taken, 1u, __ATOMIC_ACQUIRE) != 0u) {
        return 0u;
    }
    while (started < wanted && start(&workers[started])) {
        ++started;
    }
    forked = started < wanted ? started : wanted;
    for (uint32_t n = 0; n < forked; ++n) {
        worker *const it = &workers[n];
        it->run = run;
        it->context = context;
        __atomic_store_n(&it->state, POSTED, __ATOMIC_SEQ_CST);
        if (__atomic_load_n(&it->sleeping, __ATOMIC_SEQ_CST) != 0u) {
            (void)pthread_mutex_lock(&it->mutex);
            (void)pthread_cond_signal(&it->wake);
            (void)pthread_mutex_unlock(&it->mutex);
        }
    }
    if (forked == 0u) {
        __atomic_store_n(&taken, 0u, __ATOMIC_RELEASE);
        return 0u;
    }
    return forked;
}

void nst_port_join(void) {
    for (uint32_t n = 0; n < forked; ++n) {
        worker *const it = &workers[n];
        uint32_t spins = 0;
        if (NST_PORT_TAKE_BACK != 0 && take(it, IDLE)) {
            it->run(it->context, n + 1u);
            continue;
        }
        while (__atomic_load_n(&it->state, __ATOMIC_ACQUIRE) != IDLE) {
            if (++spins < NST_PORT_JOIN_SPINS) {
                pause_core();
            } else {
                (void)sched_yield();
            }
        }
    }
    __atomic_store_n(&taken, 0u, __ATOMIC_RELEASE);
}
