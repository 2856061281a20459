/* riscv.c - see riscv.h; RISC-V Privileged Architecture 1.12, chapter 3.
 *
 * Handlers have a stack of their own, so that a stack overflow still has one to be reported from.  Code stands
 * in the same RAM, below the stack: a page between them is forbidden by a locked PMP entry.
 */
#include "riscv.h"

#define NST_PLIC_PRIORITY(irq) NST_REG32(NST_PLIC_BASE + 4u * (irq))
#define NST_PLIC_ENABLE(irq) NST_REG32(NST_PLIC_BASE + 0x2000u + 4u * ((irq) / 32u))
#define NST_PLIC_THRESHOLD NST_REG32(NST_PLIC_BASE + 0x200000u)
#define NST_PLIC_CLAIM NST_REG32(NST_PLIC_BASE + 0x200004u)

#define NST_CAUSE_INTERRUPT 0x80000000u
#define NST_CAUSE_TIMER (NST_CAUSE_INTERRUPT | 7u)
#define NST_CAUSE_EXTERNAL (NST_CAUSE_INTERRUPT | 11u)
#define NST_PMP_LOCKED_NAPOT 0x98u /* no read, no write, no execution */

extern uint32_t nst_guard[]; /* 4096 bytes, from the linker script */

void nst_trap_entry(void);
void nst_trap(uint32_t cause, uint32_t pc, uint32_t sp, uint32_t lr);

/* ---- start ---- */

__attribute__((naked, section(".nst_entry"), used)) void nst_reset_entry(void) {
    __asm__ volatile(
        "csrw mie, zero\n"
        "la sp, nst_stack_top\n"
        "la tp, nst_tls\n"
        "la t0, nst_handler_stack_top\n"
        "csrw mscratch, t0\n"
        "la t0, nst_trap_entry\n"
        "csrw mtvec, t0\n"
        "li t0, 0x2000\n" /* mstatus.FS: the FPU is on */
        "csrs mstatus, t0\n"
        "la t0, nst_start\n"
        "jr t0\n");
}

void nst_irq_start(void) {
    const uint32_t guard = ((uint32_t)(uintptr_t)nst_guard >> 2) | 0x1FFu; /* 4096 bytes */
    NST_CSR_WRITE("pmpaddr0", guard);
    NST_CSR_WRITE("pmpcfg0", NST_PMP_LOCKED_NAPOT);
    NST_PLIC_THRESHOLD = 0u;
    NST_CSR_SET("mie", NST_MIE_EXTERNAL);
    NST_CSR_SET("mstatus", NST_MSTATUS_MIE);
}

/* ---- interrupts ---- */

/* By its priority: a PLIC takes no completion of an interrupt that is not enabled, and a handler may hold its own
 * (RISC-V PLIC specification, chapter 9). */
void nst_irq_hold(uint32_t irq) {
    NST_PLIC_PRIORITY(irq) = 0u;
    __asm__ volatile("fence" ::: "memory");
}

void nst_irq_release(uint32_t irq) {
    NST_PLIC_PRIORITY(irq) = 1u;
    NST_PLIC_ENABLE(irq) |= 1u << (irq % 32u);
}

/* Interrupts wake a core from WFI also while mstatus.MIE holds them off, so none slips in between the
 * question and the sleep. */
void nst_sleep_while(const volatile uint32_t *word, uint32_t seen) {
    NST_CSR_CLEAR("mstatus", NST_MSTATUS_MIE);
    if (*word == seen) {
        __asm__ volatile("wfi" ::: "memory");
    }
    NST_CSR_SET("mstatus", NST_MSTATUS_MIE);
}

/* ---- faults ---- */

/* The bit of a Cortex-M's CFSR, which nst_fault speaks, that says the same as an exception's code. */
static uint32_t nst_cause_bit(uint32_t code) {
    switch (code) {
    case 1u: /* instruction access fault */
        return 1u << 0;
    case 2u: /* illegal instruction */
    case 3u: /* breakpoint: what a compiler's trap is here */
        return 1u << 16;
    case 4u: /* load, store address misaligned */
    case 6u:
        return 1u << 24;
    case 5u: /* load, store access fault */
    case 7u:
        return 1u << 1;
    default:
        return 0u;
    }
}

static void nst_die(uint32_t kind, uint32_t cause, uint32_t pc, uint32_t sp, uint32_t lr) {
    nst_fault it = {kind, 0u, 0u, 0u, 0u, 0u};
    it.pc = pc;
    it.lr = lr;
    it.sp = sp;
    if (kind == NST_RPC_FAULT_EXCEPTION) {
        const uint32_t guard = (uint32_t)(uintptr_t)nst_guard;
        NST_CSR_READ("mtval", it.address);
        it.cause = nst_cause_bit(cause);
        if (it.address - guard < 4096u) {
            it.kind = NST_RPC_FAULT_STACK;
        } else if (cause < 4u) {
            it.address = 0u; /* of no data */
        }
    }
    nst_die_of(&it);
}

__attribute__((used)) void nst_trap(uint32_t cause, uint32_t pc, uint32_t sp, uint32_t lr) {
    if (cause == NST_CAUSE_EXTERNAL) {
        const uint32_t irq = NST_PLIC_CLAIM;
        if (irq != 0u) {
            nst_irq_handler(irq);
            NST_PLIC_CLAIM = irq;
        }
    } else if (cause == NST_CAUSE_TIMER) {
        if (nst_timer_handler() == 0) {
            nst_die(NST_RPC_FAULT_LIMIT, cause, pc, sp, lr);
        }
    } else {
        nst_die((cause & NST_CAUSE_INTERRUPT) != 0u ? NST_RPC_FAULT_INTERRUPT : NST_RPC_FAULT_EXCEPTION,
                cause, pc, sp, lr);
    }
}

/* Handlers use integers alone, so only what a call may change of those is kept. */
__attribute__((naked, aligned(4))) void nst_trap_entry(void) {
    __asm__ volatile(
        "csrrw sp, mscratch, sp\n"
        "addi sp, sp, -64\n"
        "sw ra, 0(sp)\n sw t0, 4(sp)\n sw t1, 8(sp)\n sw t2, 12(sp)\n"
        "sw t3, 16(sp)\n sw t4, 20(sp)\n sw t5, 24(sp)\n sw t6, 28(sp)\n"
        "sw a0, 32(sp)\n sw a1, 36(sp)\n sw a2, 40(sp)\n sw a3, 44(sp)\n"
        "sw a4, 48(sp)\n sw a5, 52(sp)\n sw a6, 56(sp)\n sw a7, 60(sp)\n"
        "csrr a0, mcause\n"
        "csrr a1, mepc\n"
        "csrr a2, mscratch\n"
        "mv a3, ra\n"
        "call nst_trap\n"
        "lw ra, 0(sp)\n lw t0, 4(sp)\n lw t1, 8(sp)\n lw t2, 12(sp)\n"
        "lw t3, 16(sp)\n lw t4, 20(sp)\n lw t5, 24(sp)\n lw t6, 28(sp)\n"
        "lw a0, 32(sp)\n lw a1, 36(sp)\n lw a2, 40(sp)\n lw a3, 44(sp)\n"
        "lw a4, 48(sp)\n lw a5, 52(sp)\n lw a6, 56(sp)\n lw a7, 60(sp)\n"
        "addi sp, sp, 64\n"
        "csrrw sp, mscratch, sp\n"
        "mret\n");
}
