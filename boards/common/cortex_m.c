/* cortex_m.c - start, faults, stack measurement and restart of a Cortex-M core (Armv6-M, Armv7-M).
 *
 * The program runs on the process stack, handlers on one of their own: a stack overflow then still
 * has a stack to be reported from.  A fault leaves a record in memory that is not cleared, and restarts
 * the board, which tells the host.
 */
#include "cortex_m.h"

/* From the linker script. */
extern uint32_t nst_stack_low[];
extern uint32_t nst_stack_top[];
extern uint32_t nst_data_load[];
extern uint32_t nst_data_start[];
extern uint32_t nst_data_end[];
extern uint32_t nst_bss_start[];
extern uint32_t nst_bss_end[];

void nst_start(void);
void nst_fault_with_frame(const uint32_t *frame);
void nst_limit_with_frame(const uint32_t *frame);

/* ---- start ---- */

/* Switch to the process stack, then go on in C. */
__attribute__((naked)) void nst_reset_entry(void) {
    __asm__ volatile(
        "ldr r0, =nst_stack_top\n"
        "msr psp, r0\n"
        "movs r0, #2\n"
        "msr control, r0\n"
        "isb\n"
        "ldr r0, =nst_start\n"
        "bx r0\n");
}

__attribute__((used)) void nst_start(void) {
    const volatile uint32_t *from = nst_data_load;
    volatile uint32_t *to;
#if defined(__ARM_FP)
    NST_SCB_CPACR |= 0xFu << 20; /* full access to CP10 and CP11 */
    __asm__ volatile("dsb\n isb" ::: "memory");
#endif
    for (to = nst_data_start; to < nst_data_end; to++) {
        *to = *from++;
    }
    for (to = nst_bss_start; to < nst_bss_end; to++) {
        *to = 0u;
    }
    nst_main();
    nst_port_reset();
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

void nst_port_reset(void) {
    __asm__ volatile("dsb" ::: "memory");
    NST_SCB_AIRCR = 0x05FA0004u; /* SYSRESETREQ */
    __asm__ volatile("dsb" ::: "memory");
    for (;;) {
    }
}

void nst_die(uint32_t kind, const uint32_t *frame) {
    nst_fault *const it = &nst_record.fault;
    it->kind = kind;
    it->sp = (uint32_t)(uintptr_t)frame;
    it->pc = 0u;
    it->lr = 0u;
    it->cause = 0u;
    it->address = 0u;
#if __ARM_ARCH >= 7
    it->cause = NST_SCB_CFSR;
    if ((it->cause & 0x8000u) != 0u) { /* BFARVALID */
        it->address = NST_SCB_BFAR;
    } else if ((it->cause & 0x80u) != 0u) { /* MMARVALID */
        it->address = NST_SCB_MMFAR;
    }
#endif
    /* The stacked registers r0-r3, r12, lr, pc, xpsr are only there if they fitted on the stack. */
    if (frame < nst_stack_low) {
        it->kind = NST_RPC_FAULT_STACK;
    } else {
        it->lr = frame[5];
        it->pc = frame[6];
    }
    nst_record.magic = NST_FAULT_MAGIC;
    nst_port_reset();
}

__attribute__((used)) void nst_fault_with_frame(const uint32_t *frame) {
    uint32_t exception;
    __asm__ volatile("mrs %0, ipsr" : "=r"(exception));
    nst_die(exception >= 16u ? NST_RPC_FAULT_INTERRUPT : NST_RPC_FAULT_EXCEPTION, frame);
}

__attribute__((used)) void nst_limit_with_frame(const uint32_t *frame) {
    nst_die(NST_RPC_FAULT_LIMIT, frame);
}

/* Bit 2 of the return code in lr tells which stack holds the frame (Armv7-M ARM B1.5.8). */
#define NST_ENTRY(function)      \
    __asm__ volatile(            \
        "movs r0, #4\n"          \
        "mov r1, lr\n"           \
        "tst r0, r1\n"           \
        "beq 1f\n"               \
        "mrs r0, psp\n"          \
        "b 2f\n"                 \
        "1: mrs r0, msp\n"       \
        "2: ldr r1, =" function "\n" \
        "bx r1\n")

__attribute__((naked)) void nst_fault_entry(void) {
    NST_ENTRY("nst_fault_with_frame");
}

__attribute__((naked)) void nst_limit_entry(void) {
    NST_ENTRY("nst_limit_with_frame");
}

/* ---- stack ---- */

#define NST_STACK_PAINT 0xC5A3F19Bu

static uint32_t *nst_painted_top;

/* Both are leaves that keep everything in registers, so `sp` is their caller's. */
static inline uint32_t *nst_stack_pointer(void) {
    uint32_t *sp;
    __asm__ volatile("mov %0, sp" : "=r"(sp));
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
