/* core.c - see core.h.
 *
 * A fault leaves a record in memory that is not cleared, and restarts the board, which tells the host.
 */
#include "core.h"

/* ---- start ---- */

void nst_start(void) {
    const volatile uint32_t *from = nst_data_load;
    volatile uint32_t *to;
    for (to = nst_data_start; to < nst_data_end; to++) {
        *to = *from++;
    }
    for (to = nst_bss_start; to < nst_bss_end; to++) {
        *to = 0u;
    }
    nst_main();
    nst_port_reset();
}

/* ---- registers ---- */

#define NST_AWAIT_READS 1000000u /* a tenth of a second and more, at the clocks that cores start with */

int nst_await(uintptr_t address, uint32_t mask, uint32_t value) {
    uint32_t i;
    for (i = 0u; i < NST_AWAIT_READS; i++) {
        if ((NST_REG32(address) & mask) == value) {
            return 1;
        }
    }
    return 0;
}

/* ---- faults ---- */

#define NST_FAULT_MAGIC 0x4E465431u /* "NFT1" */

static struct {
    uint32_t magic;
    nst_fault fault;
} nst_record __attribute__((section(".noinit")));

static const nst_fault nst_no_fault = {NST_RPC_FAULT_NONE, 0u, 0u, 0u, 0u, 0u};

const nst_fault *nst_port_fault(void) {
    return nst_record.magic == NST_FAULT_MAGIC ? &nst_record.fault : &nst_no_fault;
}

void nst_port_fault_clear(void) {
    nst_record.magic = 0u;
}

void nst_die_of(const nst_fault *fault) {
    nst_record.fault = *fault;
    nst_record.magic = NST_FAULT_MAGIC;
    nst_port_reset();
}

/* ---- stack ---- */

#define NST_STACK_PAINT 0xC5A3F19Bu

static uint32_t *nst_painted_top;

/* Both are leaves that keep everything in registers, so `sp` is their caller's. */
static inline uint32_t *nst_stack_pointer(void) {
    uint32_t *sp;
#if defined(__riscv)
    __asm__ volatile("mv %0, sp" : "=r"(sp));
#else
    __asm__ volatile("mov %0, sp" : "=r"(sp));
#endif
    return sp;
}

void nst_port_stack_paint(void) {
    uint32_t *const top = nst_stack_pointer();
    volatile uint32_t *at;
    for (at = nst_stack_low; at < top; at++) {
        *at = NST_STACK_PAINT;
    }
    nst_painted_top = top;
}

uint32_t nst_port_stack_used(void) {
    const volatile uint32_t *at = nst_stack_low;
    while (at < nst_painted_top && *at == NST_STACK_PAINT) {
        at++;
    }
    return (uint32_t)((uintptr_t)nst_painted_top - (uintptr_t)at);
}
