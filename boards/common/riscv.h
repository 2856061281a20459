/* riscv.h - what boards with a RISC-V core share: start, traps, the platform's interrupt controller.
 *
 * riscv.c implements the interrupts of core.h over a PLIC at NST_PLIC_BASE (RISC-V PLIC Specification 1.0), whose
 * context 0 is this core in machine mode.  The board defines nst_irq_handler and the rest of nst_port.h.
 */
#ifndef NST_RISCV_H
#define NST_RISCV_H

#include "core.h"

#ifdef __cplusplus
extern "C" {
#endif

#define NST_CSR_READ(name, value) __asm__ volatile("csrr %0, " name : "=r"(value))
#define NST_CSR_WRITE(name, value) __asm__ volatile("csrw " name ", %0" : : "r"(value))
#define NST_CSR_SET(name, bits) __asm__ volatile("csrs " name ", %0" : : "r"(bits) : "memory")
#define NST_CSR_CLEAR(name, bits) __asm__ volatile("csrc " name ", %0" : : "r"(bits) : "memory")

#define NST_MSTATUS_MIE (1u << 3)
#define NST_MIE_TIMER (1u << 7)
#define NST_MIE_EXTERNAL (1u << 11)

void nst_reset_entry(void);

/* Let interrupts come; for nst_port_start. */
void nst_irq_start(void);

/* Of the board: take an interrupt of the PLIC. */
void nst_irq_handler(uint32_t irq);

/* Of the board: take an interrupt of the timer.  Returns 0 when what is timed has taken too long. */
int nst_timer_handler(void);

#ifdef __cplusplus
}
#endif

#endif /* NST_RISCV_H */
