/* core.h - what drivers and ports need of any core: registers, interrupts, the record of a fault.
 *
 * core.c implements nst_port_stack_*, nst_port_fault and nst_port_fault_clear; cortex_m.c and riscv.c the rest.
 */
#ifndef NST_CORE_H
#define NST_CORE_H

#include <stdint.h>

#include "nst_port.h"
#include "nst_rpc_messages.h"

#ifdef __cplusplus
extern "C" {
#endif

#define NST_REG8(address) (*(volatile uint8_t *)(uintptr_t)(address))
#define NST_REG32(address) (*(volatile uint32_t *)(uintptr_t)(address))

/* From the linker script. */
extern uint32_t nst_stack_low[];
extern uint32_t nst_stack_top[];
extern uint32_t nst_handler_stack_top[];
extern uint32_t nst_data_load[];
extern uint32_t nst_data_start[];
extern uint32_t nst_data_end[];
extern uint32_t nst_bss_start[];
extern uint32_t nst_bss_end[];

/* Keep one interrupt away, or let it come. */
void nst_irq_hold(uint32_t irq);
void nst_irq_release(uint32_t irq);

/* Sleep until an interrupt comes, unless `*word`, which a handler changes, is not `seen` any more. */
void nst_sleep_while(const volatile uint32_t *word, uint32_t seen);

/* ---- of core.c ---- */

/* Wait until `(register & mask) == value`, but not for ever: hardware that is not there (a crystal that is not
 * fitted, a model of the chip without its clock tree) must not keep the console from starting.
 * Returns whether it came. */
int nst_await(uintptr_t address, uint32_t mask, uint32_t value);

/* Copy data and clear what must be zero, then run nst_main.  Does not return. */
void nst_start(void);

/* Keep why the program ends, and restart.  Does not return. */
void nst_die_of(const nst_fault *fault);

#ifdef __cplusplus
}
#endif

#endif /* NST_CORE_H */
