/* ns16550.c - console on a 16550 UART (National Semiconductor PC16550D), registers a byte apart.
 *
 * The board defines NST_UART_BASE, NST_UART_RX_IRQ and NST_UART_CLOCK_HZ.  The receiver keeps 16 bytes.
 */
#include "core.h"
#include "uart.h"

#define NST_UART_DATA NST_REG8(NST_UART_BASE + 0u)
#define NST_UART_IER NST_REG8(NST_UART_BASE + 1u)
#define NST_UART_FCR NST_REG8(NST_UART_BASE + 2u)
#define NST_UART_LCR NST_REG8(NST_UART_BASE + 3u)
#define NST_UART_LSR NST_REG8(NST_UART_BASE + 5u)
#define NST_LSR_READY 0x01u
#define NST_LSR_OVERRUN 0x02u
#define NST_LSR_TX_EMPTY 0x20u

#ifndef NST_UART_BAUD
#define NST_UART_BAUD 115200u
#endif

static volatile uint32_t nst_uart_overruns;

void nst_uart_start(void) {
    const uint32_t divisor = NST_UART_CLOCK_HZ / (16u * NST_UART_BAUD);
    NST_UART_LCR = 0x83u; /* the divisor; 8 bits */
    NST_UART_DATA = (uint8_t)divisor;
    NST_UART_IER = (uint8_t)(divisor >> 8);
    NST_UART_LCR = 0x03u;
    NST_UART_FCR = 0x07u; /* FIFOs on and empty, an interrupt for each byte */
    NST_UART_IER = 0x01u;
    nst_uart_rx_release();
}

void nst_uart_rx_handler(void) {
    uint32_t state = NST_UART_LSR; /* reading clears the overrun */
    while ((state & NST_LSR_READY) != 0u && !nst_uart_full()) {
        nst_uart_overruns |= state & NST_LSR_OVERRUN;
        nst_uart_put(NST_UART_DATA);
        state = NST_UART_LSR;
    }
}

/* What waits in the receiver when the ring has room again.  A gateway that tells edges alone, as that of QEMU's
 * PLIC does, would not interrupt for it: the line did not fall since the handler left it there. */
void nst_uart_resume(void) {
    nst_uart_rx_handler();
}

uintptr_t nst_uart_send_register(void) {
    return NST_UART_BASE + 0u;
}

int nst_uart_overran(void) {
    const uint32_t overran = nst_uart_overruns;
    nst_uart_overruns = 0u;
    return overran != 0u;
}

void nst_port_write(uint8_t byte) {
    nst_port_flush();
    NST_UART_DATA = byte;
}

void nst_port_flush(void) {
    uint32_t state;
    do {
        state = NST_UART_LSR;
        nst_uart_overruns |= state & NST_LSR_OVERRUN;
    } while ((state & NST_LSR_TX_EMPTY) == 0u);
}
