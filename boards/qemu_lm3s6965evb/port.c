/* port.c - Stellaris LM3S6965 evaluation board, as QEMU models it: a PL011 as console, UART0 on PA0 and PA1.
 *
 * QEMU's clock is 12.5 MHz, as after reset.  Addresses and numbers: LM3S6965 data sheet, tables 2-4, 2-9 and 5-9.
 */
#include "cortex_m.h"
#include "systick_clock.h"
#include "uart.h"

#define NST_RCGC1 NST_REG32(0x400FE104u)
#define NST_RCGC2 NST_REG32(0x400FE108u)
#define NST_GPIOA_AFSEL NST_REG32(0x40004420u)
#define NST_GPIOA_DEN NST_REG32(0x4000451Cu)

#define NST_IRQ_COUNT 44u

typedef NST_VECTORS(NST_IRQ_COUNT) nst_vector_table;

extern const nst_vector_table nst_vectors;
NST_VECTORS_PLACE const nst_vector_table nst_vectors = {
    nst_handler_stack_top,
    NST_CORE_VECTORS_WITH(nst_systick_entry),
    {NST_UNUSED_4, nst_fault_entry, nst_uart_rx_handler, NST_UNUSED_2, NST_UNUSED_4, NST_UNUSED_32}};

void nst_port_start(void) {
    NST_RCGC1 |= 1u; /* UART0 */
    NST_RCGC2 |= 1u; /* port A */
    (void)NST_RCGC2;
    NST_GPIOA_AFSEL |= 3u;
    NST_GPIOA_DEN |= 3u;
    nst_uart_start();
}
