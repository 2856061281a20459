/* port.c - nRF52840 DK: nRF52840 at 64 MHz, console UART0 on P0.06 and P0.08, to the debugger on the board.
 *
 * The core always runs at 64 MHz; the crystal makes that exact.  Registers: nRF52840 Product Specification 1.7,
 * chapters 4.3 (NVMC), 5.4 (CLOCK), 6.9 (GPIO), 6.33 (UART); an interrupt's number is the device's address / 0x1000.
 */
#include "cortex_m.h"
#include "systick_clock.h"
#include "uart.h"

#define NST_CLOCK_HFCLKSTART NST_REG32(0x40000000u)
#define NST_CLOCK_HFCLKSTARTED 0x40000100u
#define NST_NVMC_ICACHECNF NST_REG32(0x4001E540u)
#define NST_P0_OUTSET NST_REG32(0x50000508u)
#define NST_P0_DIRSET NST_REG32(0x50000518u)
#define NST_P0_PIN_CNF(n) NST_REG32(0x50000700u + 4u * (n))

#if NST_CLOCK_HZ != 64000000u
#error "the core of an nRF52840 runs at 64 MHz"
#endif

#define NST_IRQ_COUNT 48u

typedef NST_VECTORS(NST_IRQ_COUNT) nst_vector_table;

extern const nst_vector_table nst_vectors;
NST_VECTORS_PLACE const nst_vector_table nst_vectors = {
    nst_handler_stack_top,
    NST_CORE_VECTORS_WITH(nst_systick_entry),
    {NST_UNUSED_2, nst_uart_rx_handler, nst_fault_entry, NST_UNUSED_4, NST_UNUSED_8, NST_UNUSED_32}};

void nst_port_start(void) {
    NST_CLOCK_HFCLKSTART = 1u;
    nst_await(NST_CLOCK_HFCLKSTARTED, 1u, 1u);
    NST_NVMC_ICACHECNF = 1u; /* the flash's cache */
    NST_P0_OUTSET = 1u << NST_UART_TX_PIN; /* the line rests high */
    NST_P0_DIRSET = 1u << NST_UART_TX_PIN;
    NST_P0_PIN_CNF(NST_UART_RX_PIN) = 3u << 2; /* input, pulled up */
    nst_uart_start();
}
