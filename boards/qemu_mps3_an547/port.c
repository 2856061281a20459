/* port.c - Arm MPS3 with the AN547 image (Cortex-M55), as QEMU models it.
 *
 * All runs in secure state, at the devices' secure addresses.  Addresses and interrupt numbers: Arm
 * Application Note AN547, tables 4-1 and 5-1.  The clock is SysTick at 32 MHz: 2.048 ticks an instruction.
 */
#include "cortex_m.h"
#include "systick_clock.h"
#include "uart.h"

#define NST_IRQ_COUNT 128u

typedef NST_VECTORS(NST_IRQ_COUNT) nst_vector_table;

extern const nst_vector_table nst_vectors;
NST_VECTORS_PLACE const nst_vector_table nst_vectors = {
    nst_handler_stack_top,
    NST_CORE_VECTORS_WITH(nst_systick_entry),
    {NST_UNUSED_16, NST_UNUSED_16, nst_fault_entry, nst_uart_rx_handler, nst_fault_entry, nst_fault_entry,
     NST_UNUSED_4, NST_UNUSED_8, NST_UNUSED_16, NST_UNUSED_64}};

void nst_port_start(void) {
    nst_uart_start();
}
