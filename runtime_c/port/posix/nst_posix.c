/* nst_posix.c - port of the serial server to POSIX: a program that serves its model over a TCP socket.
 *
 * It listens on the loopback interface, on a port that the system chooses, and says where in its first line.
 * One client at a time; the next one finds the server as a board that was left alone.
 *
 * With the name of a file as its argument the clock is a counter of 64 bits at the file's start, which something
 * outside keeps: QEMU's plug-in of boards/qemu_aarch64 counts instructions there.  Without, it is the monotonic
 * clock, in nanoseconds.
 *
 * Faults are signals.  The server and the model run on a stack of their own with a page below it that nobody may
 * touch, so that an overflow is told from other faults; a restart is a jump back to nst_main.
 */
#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE 1 /* registers in ucontext_t, MAP_ANONYMOUS */
#endif

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include "nst_port.h"
#include "nst_rpc_messages.h"

#ifndef NST_POSIX_STACK_BYTES
#define NST_POSIX_STACK_BYTES 0x40000u
#endif
#define NST_GUARD_BYTES 0x10000u /* the largest page there is */
#define NST_TICK_US 20000u       /* how often a limit of time is looked at, and a beat may be due */
#define NST_UNIT_PER_MS 1000000u /* of the clock: nanoseconds, or instructions of one each */

/* ---- console ---- */

static int nst_listener = -1;
static int nst_client = -1;
static uint8_t nst_in[4096];
static size_t nst_in_at;
static size_t nst_in_end;
static uint8_t nst_out[4096];
static size_t nst_out_end;

static void nst_give_up(const char *what) {
    fprintf(stderr, "nestling server: %s: %s\n", what, strerror(errno));
    _exit(2);
}

static void nst_listen(void) {
    struct sockaddr_in address;
    socklen_t size = sizeof address;
    memset(&address, 0, sizeof address);
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    nst_listener = socket(AF_INET, SOCK_STREAM, 0);
    if (nst_listener < 0 || bind(nst_listener, (struct sockaddr *)&address, size) != 0 ||
        listen(nst_listener, 1) != 0 || getsockname(nst_listener, (struct sockaddr *)&address, &size) != 0) {
        nst_give_up("cannot listen");
    }
    printf("serves at socket://127.0.0.1:%u\n", (unsigned)ntohs(address.sin_port));
    fflush(stdout);
}

static void nst_hang_up(void) {
    if (nst_client >= 0) {
        close(nst_client);
    }
    nst_client = -1;
    nst_in_at = nst_in_end = nst_out_end = 0u;
}

/* Wait until there is a client. */
static void nst_answer(void) {
    const int yes = 1;
    while (nst_client < 0) {
        nst_client = accept(nst_listener, NULL, NULL);
        if (nst_client < 0 && errno != EINTR) {
            nst_give_up("cannot accept");
        }
    }
    setsockopt(nst_client, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
}

int nst_port_read(void) {
    if (nst_in_at == nst_in_end) {
        ssize_t got;
        if (nst_client < 0) {
            return -1;
        }
        got = recv(nst_client, nst_in, sizeof nst_in, MSG_DONTWAIT);
        if (got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) {
            nst_hang_up();
        }
        if (got <= 0) {
            return -1;
        }
        nst_in_at = 0u;
        nst_in_end = (size_t)got;
    }
    return nst_in[nst_in_at++];
}

void nst_port_wait(void) {
    struct pollfd wait;
    if (nst_client < 0) {
        nst_answer();
        return;
    }
    wait.fd = nst_client;
    wait.events = POLLIN;
    wait.revents = 0;
    poll(&wait, 1, 1000);
}

void nst_port_flush(void) {
    size_t at = 0u;
    while (at < nst_out_end && nst_client >= 0) {
        const ssize_t sent = send(nst_client, nst_out + at, nst_out_end - at, MSG_NOSIGNAL);
        if (sent > 0) {
            at += (size_t)sent;
        } else if (errno != EINTR) {
            nst_hang_up();
        }
    }
    nst_out_end = 0u;
}

void nst_port_write(uint8_t byte) {
    nst_out[nst_out_end++] = byte;
    if (nst_out_end == sizeof nst_out || byte == 0u) { /* a zero ends a frame */
        nst_port_flush();
    }
}

uint32_t nst_port_lost_bytes(void) {
    return 0u;
}

/* ---- clock ---- */

static const volatile uint64_t *nst_counter; /* NULL: the monotonic clock */
static uint64_t nst_clock_base;
static volatile uint64_t nst_clock_limit; /* 0: none */
static volatile uint64_t nst_clock_taken; /* by our own handler */
static uint64_t nst_tick_cost;            /* of the way into it and out again */
static uint32_t nst_beat_wanted;          /* ticks from beat to beat in the next run, 0 for none */
static volatile uint32_t nst_beat_every;
static volatile uint32_t nst_beat_at;

static uint64_t nst_now(void) {
    struct timespec now;
    if (nst_counter != NULL) {
        return *nst_counter;
    }
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void nst_ticks(uint32_t every_us) {
    struct itimerval timer;
    timer.it_interval.tv_sec = timer.it_value.tv_sec = 0;
    timer.it_interval.tv_usec = timer.it_value.tv_usec = (long)every_us;
    setitimer(ITIMER_REAL, &timer, NULL);
}

void nst_port_clock_start(uint32_t limit_ms) {
    nst_ticks(0);
    nst_clock_limit = 0u;
    nst_clock_taken = 0u;
    if (limit_ms != 0u) {
        nst_clock_limit = nst_now() + (uint64_t)limit_ms * NST_UNIT_PER_MS;
    }
    nst_beat_every = nst_beat_wanted;
    nst_beat_at = nst_beat_wanted = 0u;
    if (limit_ms != 0u || nst_beat_every != 0u) {
        nst_ticks(NST_TICK_US);
    }
    nst_clock_base = nst_now();
}

int nst_port_beat(uint32_t beat_ms) {
    const uint32_t ticks = (uint32_t)((uint64_t)beat_ms * 1000u / NST_TICK_US);
    nst_beat_wanted = beat_ms != 0u && ticks == 0u ? 1u : ticks;
    return 1;
}

uint64_t nst_port_clock(void) {
    return nst_now() - nst_clock_base - nst_clock_taken;
}

void nst_port_clock_stop(void) {
    nst_ticks(0);
    nst_clock_limit = 0u;
    nst_beat_every = 0u;
}

void nst_port_code(const void *code, uint32_t bytes) {
    char *const start = (char *)(uintptr_t)code;
    __builtin___clear_cache(start, start + bytes);
}

/* ---- stack ---- */

#define NST_STACK_PAINT 0xC5A3F19Bu
#if defined(__aarch64__)
#define NST_STACK_KEPT 0u /* the frame's address is its lowest */
#else
#define NST_STACK_KEPT 64u /* words below it that a function may keep something in */
#endif

static uint8_t *nst_stack_low;
static volatile uint32_t *nst_painted_top;

__attribute__((noinline)) void nst_port_stack_paint(void) {
    volatile uint32_t *const top = (volatile uint32_t *)((uintptr_t)__builtin_frame_address(0) & ~(uintptr_t)15u);
    volatile uint32_t *at = (volatile uint32_t *)(void *)nst_stack_low;
    for (; at < top - NST_STACK_KEPT; at++) {
        *at = NST_STACK_PAINT;
    }
    nst_painted_top = top;
}

uint32_t nst_port_stack_used(void) {
    const volatile uint32_t *at = (const volatile uint32_t *)(const void *)nst_stack_low;
    while (at < nst_painted_top && *at == NST_STACK_PAINT) {
        at++;
    }
    return (uint32_t)((uintptr_t)nst_painted_top - (uintptr_t)at);
}

/* ---- faults ---- */

static nst_fault nst_record;
static sigjmp_buf nst_restart;

const nst_fault *nst_port_fault(void) {
    return &nst_record;
}

void nst_port_fault_clear(void) {
    memset(&nst_record, 0, sizeof nst_record);
}

void nst_port_reset(void) {
    nst_port_flush();
    nst_ticks(0);
    siglongjmp(nst_restart, 1);
}

static uintptr_t nst_pc_of(const ucontext_t *context) {
#if defined(__aarch64__)
    return (uintptr_t)context->uc_mcontext.pc;
#elif defined(__x86_64__)
    return (uintptr_t)context->uc_mcontext.gregs[REG_RIP];
#else
    (void)context;
    return 0u;
#endif
}

static uintptr_t nst_sp_of(const ucontext_t *context) {
#if defined(__aarch64__)
    return (uintptr_t)context->uc_mcontext.sp;
#elif defined(__x86_64__)
    return (uintptr_t)context->uc_mcontext.gregs[REG_RSP];
#else
    (void)context;
    return 0u;
#endif
}

static void nst_die(uint32_t kind, const siginfo_t *info, const ucontext_t *context) {
    const uintptr_t address = (uintptr_t)info->si_addr, low = (uintptr_t)nst_stack_low;
    nst_port_fault_clear();
    nst_record.kind = kind;
    nst_record.pc = (uint32_t)nst_pc_of(context);
    nst_record.sp = (uint32_t)nst_sp_of(context);
    /* The bits of a Cortex-M's CFSR that say the same. */
    if (kind == NST_RPC_FAULT_EXCEPTION) {
        switch (info->si_signo) {
            case SIGSEGV:
                nst_record.cause = 1u << 1;
                break;
            case SIGBUS:
                nst_record.cause = 1u << 9;
                break;
            case SIGILL:
                nst_record.cause = 1u << 16;
                break;
            default:
                nst_record.cause = 1u << 25;
                break;
        }
        nst_record.address = info->si_signo == SIGSEGV || info->si_signo == SIGBUS ? (uint32_t)address : 0u;
        if (info->si_signo == SIGSEGV && address >= low - NST_GUARD_BYTES && address < low) {
            nst_record.kind = NST_RPC_FAULT_STACK;
        }
    }
    nst_ticks(0);
    siglongjmp(nst_restart, 1);
}

static void nst_on_fault(int number, siginfo_t *info, void *context) {
    (void)number;
    nst_die(NST_RPC_FAULT_EXCEPTION, info, (const ucontext_t *)context);
}

/* What the handler itself counts is taken off, the way into it and out again as it was found at the start. */
static void nst_on_tick(int number, siginfo_t *info, void *context) {
    const uint64_t begin = nst_now(), limit = nst_clock_limit;
    (void)number;
    if (limit != 0u && begin > limit) {
        nst_die(NST_RPC_FAULT_LIMIT, info, (const ucontext_t *)context);
    }
    if (nst_beat_every != 0u) {
        nst_beat_at = nst_beat_at + 1u;
        if (nst_beat_at % nst_beat_every == 0u && nst_out_end == 0u && nst_client >= 0) { /* in no frame */
            const int before = errno;
            (void)send(nst_client, "", 1u, MSG_NOSIGNAL | MSG_DONTWAIT);
            errno = before;
        }
    }
    nst_clock_taken = nst_clock_taken + nst_tick_cost + (nst_now() - begin);
}

static void nst_handle(int number, void (*handler)(int, siginfo_t *, void *)) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = handler;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
    if (sigaction(number, &action, NULL) != 0) {
        nst_give_up("cannot handle a signal");
    }
}

/* Return the least that sending ourselves SIGALRM costs, beside what the handler counts of itself. */
static uint64_t nst_alarm_cost(void) {
    uint64_t least = UINT64_MAX;
    int i;
    for (i = 0; i < 4; i++) {
        uint64_t begin, cost;
        nst_clock_taken = 0u;
        begin = nst_now();
        pthread_kill(pthread_self(), SIGALRM);
        cost = nst_now() - begin - nst_clock_taken;
        least = cost < least ? cost : least;
    }
    return least;
}

static void nst_handlers_start(void) {
    static uint8_t alternate[0x10000];
    static const int faults[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP, SIGABRT};
    stack_t stack;
    size_t i;
    memset(&stack, 0, sizeof stack);
    stack.ss_sp = alternate;
    stack.ss_size = sizeof alternate;
    if (sigaltstack(&stack, NULL) != 0) {
        nst_give_up("cannot set a stack for signals");
    }
    for (i = 0u; i < sizeof faults / sizeof faults[0]; i++) {
        nst_handle(faults[i], nst_on_fault);
    }
    signal(SIGALRM, SIG_IGN);
    if (nst_counter != NULL) {
        const uint64_t ignored = nst_alarm_cost();
        nst_handle(SIGALRM, nst_on_tick);
        nst_tick_cost = nst_alarm_cost() - ignored;
    }
    nst_handle(SIGALRM, nst_on_tick);
    nst_clock_taken = 0u;
}

/* ---- start ---- */

void nst_port_start(void) {
    if (nst_listener < 0) {
        nst_listen();
        nst_answer();
    }
}

static void *nst_serve_thread(void *unused) {
    (void)unused;
    nst_handlers_start();
    (void)sigsetjmp(nst_restart, 1);
    nst_main();
    return NULL;
}

static const volatile uint64_t *nst_open_counter(const char *path) {
    const int file = open(path, O_RDONLY);
    void *const there = file < 0 ? MAP_FAILED : mmap(NULL, 4096, PROT_READ, MAP_SHARED, file, 0);
    if (there == MAP_FAILED) {
        nst_give_up(path);
    }
    return (const volatile uint64_t *)there;
}

int main(int count, char **arguments) {
    pthread_attr_t attributes;
    pthread_t thread;
    sigset_t alarm_only;
    uint8_t *const memory = (uint8_t *)mmap(NULL, NST_GUARD_BYTES + NST_POSIX_STACK_BYTES, PROT_READ | PROT_WRITE,
                                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory, NST_GUARD_BYTES, PROT_NONE) != 0) {
        nst_give_up("no memory for a stack");
    }
    nst_stack_low = memory + NST_GUARD_BYTES;
    nst_counter = count > 1 ? nst_open_counter(arguments[1]) : NULL;
    sigemptyset(&alarm_only);
    sigaddset(&alarm_only, SIGALRM); /* the other thread's */
    if (pthread_attr_init(&attributes) != 0 ||
        pthread_attr_setstack(&attributes, nst_stack_low, NST_POSIX_STACK_BYTES) != 0 ||
        pthread_create(&thread, &attributes, nst_serve_thread, NULL) != 0 ||
        pthread_sigmask(SIG_BLOCK, &alarm_only, NULL) != 0) {
        nst_give_up("cannot start");
    }
    pthread_join(thread, NULL);
    return 0;
}
