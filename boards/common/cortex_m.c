/* cortex_m.c - start, faults, interrupts and restart of a Cortex-M core (Armv6-M, Armv7-M, Armv8-M).
 *
 * The program runs on the process stack, handlers on one of their own: a stack overflow then still
 * has a stack to be reported from.
 */
#include "cortex_m.h"

void nst_start_core(void);
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
        "ldr r0, =nst_start_core\n"
        "bx r0\n");
}

__attribute__((used)) void nst_start_core(void) {
#if defined(__ARM_FP)
    NST_SCB_CPACR |= 0xFu << 20; /* full access to CP10 and CP11 */
    __asm__ volatile("dsb\n isb" ::: "memory");
#endif
    nst_start();
}

/* ---- interrupts ---- */

void nst_irq_hold(uint32_t irq) {
    NST_NVIC_ICER(irq / 32u) = 1u << (irq % 32u);
    __asm__ volatile("dsb\n isb" ::: "memory");
}

void nst_irq_release(uint32_t irq) {
    NST_NVIC_ISER(irq / 32u) = 1u << (irq % 32u);
}

/* Interrupts wake a core from WFI also while PRIMASK holds them off, so none slips in between the
 * question and the sleep. */
void nst_sleep_while(const volatile uint32_t *word, uint32_t seen) {
    __asm__ volatile("cpsid i" ::: "memory");
    if (*word == seen) {
        __asm__ volatile("wfi" ::: "memory");
    }
    __asm__ volatile("cpsie i" ::: "memory");
}

/* ---- faults ---- */

void nst_port_reset(void) {
    __asm__ volatile("dsb" ::: "memory");
    NST_SCB_AIRCR = 0x05FA0004u; /* SYSRESETREQ */
    __asm__ volatile("dsb" ::: "memory");
    for (;;) {
    }
}

static void nst_die(uint32_t kind, const uint32_t *frame) {
    nst_fault it = {kind, 0u, 0u, 0u, 0u, 0u};
    it.sp = (uint32_t)(uintptr_t)frame;
#if __ARM_ARCH >= 7
    it.cause = NST_SCB_CFSR;
    if ((it.cause & 0x8000u) != 0u) { /* BFARVALID */
        it.address = NST_SCB_BFAR;
    } else if ((it.cause & 0x80u) != 0u) { /* MMARVALID */
        it.address = NST_SCB_MMFAR;
    }
#endif
    /* The stacked registers r0-r3, r12, lr, pc, xpsr are only there if they fitted on the stack. */
    if (frame < nst_stack_low) {
        it.kind = NST_RPC_FAULT_STACK;
    } else {
        it.lr = frame[5];
        it.pc = frame[6];
    }
    nst_die_of(&it);
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
