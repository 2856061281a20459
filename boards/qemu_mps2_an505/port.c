/* port.c - Arm MPS2 with the AN505 image (Cortex-M33), as QEMU models it.
 *
 * All runs in secure state, at the devices' secure addresses.  Addresses and interrupt numbers: Arm
 * Application Note AN505, tables 3-1 and 3-8.  The clock is SysTick at 20 MHz: 1.28 ticks an instruction.
 */
#include "cortex_m.h"
#include "systick_clock.h"
#include "uart.h"

#define NST_IRQ_COUNT 124u

typedef NST_VECTORS(NST_IRQ_COUNT) nst_vector_table;

extern const nst_vector_table nst_vectors;
NST_VECTORS_PLACE const nst_vector_table nst_vectors = {
    nst_handler_stack_top,
    NST_CORE_VECTORS_WITH(nst_systick_entry),
    {NST_UNUSED_16, NST_UNUSED_16, nst_uart_rx_handler, nst_fault_entry, nst_fault_entry, nst_fault_entry,
     NST_UNUSED_8, NST_UNUSED_16, NST_UNUSED_64}};

void nst_port_start(void) {
    nst_uart_start();
}
