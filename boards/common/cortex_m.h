/* cortex_m.h - what boards with a Cortex-M core share: vectors, start, faults, restart.
 *
 * cortex_m.c implements nst_port_reset, the interrupts of core.h and the core's exceptions.  A board's port
 * defines the vector table with NST_CORE_VECTORS first, and the rest of nst_port.h.
 */
#ifndef NST_CORTEX_M_H
#define NST_CORTEX_M_H

#include "core.h"

#ifdef __cplusplus
extern "C" {
#endif

/* System control space, Armv7-M Architecture Reference Manual B3.2 and B3.3. */
#define NST_SYST_CSR NST_REG32(0xE000E010u)
#define NST_SYST_RVR NST_REG32(0xE000E014u)
#define NST_SYST_CVR NST_REG32(0xE000E018u)
#define NST_SCB_ICSR NST_REG32(0xE000ED04u)
#define NST_SCB_VTOR NST_REG32(0xE000ED08u)
#define NST_SCB_AIRCR NST_REG32(0xE000ED0Cu)
#define NST_SCB_CCR NST_REG32(0xE000ED14u)
#define NST_SCB_CFSR NST_REG32(0xE000ED28u)
#define NST_SCB_HFSR NST_REG32(0xE000ED2Cu)
#define NST_SCB_MMFAR NST_REG32(0xE000ED34u)
#define NST_SCB_BFAR NST_REG32(0xE000ED38u)
#define NST_SCB_CPACR NST_REG32(0xE000ED88u)
#define NST_NVIC_ISER(n) NST_REG32(0xE000E100u + 4u * (n))
#define NST_NVIC_ICER(n) NST_REG32(0xE000E180u + 4u * (n))

typedef void (*nst_handler)(void);

/* A vector table: the handlers' stack, 15 exceptions of the core, the board's interrupts. */
#define NST_VECTORS(count)           \
    struct {                         \
        uint32_t *stack;             \
        nst_handler core[15];        \
        nst_handler irq[(count)];    \
    }
#define NST_VECTORS_PLACE __attribute__((section(".nst_vectors"), used))
#define NST_CORE_VECTORS_AND(nmi, systick)                                             \
    {nst_reset_entry, (nmi), NST_UNUSED_8, nst_fault_entry, nst_fault_entry, \
     nst_fault_entry, nst_fault_entry, (systick)}
#define NST_CORE_VECTORS_WITH(systick) NST_CORE_VECTORS_AND(nst_fault_entry, systick)
#define NST_CORE_VECTORS NST_CORE_VECTORS_WITH(nst_fault_entry)

/* Entries of interrupts that nobody expects. */
#define NST_UNUSED_4 nst_fault_entry, nst_fault_entry, nst_fault_entry, nst_fault_entry
#define NST_UNUSED_8 NST_UNUSED_4, NST_UNUSED_4
#define NST_UNUSED_16 NST_UNUSED_8, NST_UNUSED_8
#define NST_UNUSED_2 nst_fault_entry, nst_fault_entry
#define NST_UNUSED_32 NST_UNUSED_16, NST_UNUSED_16
#define NST_UNUSED_64 NST_UNUSED_16, NST_UNUSED_16, NST_UNUSED_16, NST_UNUSED_16

void nst_reset_entry(void);
void nst_fault_entry(void); /* also for interrupts nobody expects */

/* A handler that ends a run that takes too long. */
void nst_limit_entry(void);

#ifdef __cplusplus
}
#endif

#endif /* NST_CORTEX_M_H */
