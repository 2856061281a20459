/* pl011.c - console on Arm's PrimeCell UART PL011 (DDI 0183, chapter 3), as in RP2040, RP2350 and Stellaris.
 *
 * The board defines NST_UART_BASE, NST_UART_RX_IRQ and NST_UART_CLOCK_HZ, and has given the UART its clock and its
 * pins before nst_uart_start.  The receiver keeps 16 bytes or 32; it interrupts when an eighth of that is there,
 * or some bytes and then silence for the time of 32 bits.
 */
#include "core.h"
#include "uart.h"

#define NST_PL011_DR NST_REG32(NST_UART_BASE + 0x00u)
#define NST_PL011_FR NST_REG32(NST_UART_BASE + 0x18u)
#define NST_PL011_IBRD NST_REG32(NST_UART_BASE + 0x24u)
#define NST_PL011_FBRD NST_REG32(NST_UART_BASE + 0x28u)
#define NST_PL011_LCRH NST_REG32(NST_UART_BASE + 0x2Cu)
#define NST_PL011_CR NST_REG32(NST_UART_BASE + 0x30u)
#define NST_PL011_IFLS NST_REG32(NST_UART_BASE + 0x34u)
#define NST_PL011_IMSC NST_REG32(NST_UART_BASE + 0x38u)
#define NST_PL011_ICR NST_REG32(NST_UART_BASE + 0x44u)
#define NST_PL011_BUSY (1u << 3)
#define NST_PL011_RXFE (1u << 4)
#define NST_PL011_TXFF (1u << 5)
#define NST_PL011_RECEIVED ((1u << 6) | (1u << 4)) /* interrupts: time-out, level */
#define NST_PL011_OE (1u << 11)

#ifndef NST_UART_BAUD
#define NST_UART_BAUD 115200u
#endif

static volatile uint32_t nst_pl011_overruns;

void nst_uart_start(void) {
    const uint32_t divider = (uint32_t)(((uint64_t)NST_UART_CLOCK_HZ * 8u / NST_UART_BAUD + 1u) / 2u); /* 64ths of 16 */
    NST_PL011_CR = 0u;
    NST_PL011_IBRD = divider >> 6;
    NST_PL011_FBRD = divider & 63u;
    NST_PL011_LCRH = (3u << 5) | (1u << 4); /* 8 bits, with the FIFOs; takes the divider over */
    NST_PL011_IFLS = 0u;
    NST_PL011_IMSC = NST_PL011_RECEIVED;
    NST_PL011_CR = (1u << 9) | (1u << 8) | 1u; /* RXE, TXE, UARTEN */
    nst_uart_rx_release();
}

void nst_uart_rx_handler(void) {
    NST_PL011_ICR = NST_PL011_RECEIVED;
    while ((NST_PL011_FR & NST_PL011_RXFE) == 0u && !nst_uart_full()) {
        const uint32_t data = NST_PL011_DR;
        nst_pl011_overruns |= data & NST_PL011_OE;
        nst_uart_put((uint8_t)data);
    }
}

void nst_uart_resume(void) {
    nst_uart_rx_handler();
}

uintptr_t nst_uart_send_register(void) {
    return NST_UART_BASE + 0x000u;
}

int nst_uart_overran(void) {
    const uint32_t overran = nst_pl011_overruns;
    nst_pl011_overruns = 0u;
    return overran != 0u;
}

void nst_port_write(uint8_t byte) {
    while ((NST_PL011_FR & NST_PL011_TXFF) != 0u) {
    }
    NST_PL011_DR = byte;
}

void nst_port_flush(void) {
    while ((NST_PL011_FR & NST_PL011_BUSY) != 0u) {
    }
}
