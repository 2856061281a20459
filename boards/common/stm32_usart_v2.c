/* stm32_usart_v2.c - console on an STM32 USART of the second kind, or an LPUART (RM0385 31.8, RM0432 50.7, RM0433 48.7).
 *
 * The board defines NST_UART_BASE, NST_UART_RX_IRQ, NST_UART_CLOCK_HZ, the clock that the USART counts, and, for an
 * LPUART, NST_UART_LOW_POWER; it has given the USART its clock and its pins before nst_uart_start.
 */
#include "core.h"
#include "uart.h"

#define NST_USART_CR1 NST_REG32(NST_UART_BASE + 0x00u)
#define NST_USART_BRR NST_REG32(NST_UART_BASE + 0x0Cu)
#define NST_USART_ISR NST_REG32(NST_UART_BASE + 0x1Cu)
#define NST_USART_ICR NST_REG32(NST_UART_BASE + 0x20u)
#define NST_USART_RDR NST_REG32(NST_UART_BASE + 0x24u)
#define NST_USART_TDR NST_REG32(NST_UART_BASE + 0x28u)
#define NST_USART_ORE (1u << 3)
#define NST_USART_RXNE (1u << 5)
#define NST_USART_TC (1u << 6)
#define NST_USART_TXE (1u << 7)
#define NST_USART_ERRORS 0xFu /* parity, framing, noise, overrun */

#ifndef NST_UART_LOW_POWER
#define NST_UART_LOW_POWER 0
#endif
#if NST_UART_LOW_POWER
#define NST_USART_SCALE 256u /* RM0432, 51.4.7 */
#else
#define NST_USART_SCALE 1u /* oversampling by 16: the divider is in sixteenths */
#endif

#ifndef NST_UART_BAUD
#define NST_UART_BAUD 115200u
#endif

static volatile uint32_t nst_usart_overruns;

void nst_uart_start(void) {
    NST_USART_BRR =
        (uint32_t)(((uint64_t)NST_UART_CLOCK_HZ * NST_USART_SCALE + NST_UART_BAUD / 2u) / NST_UART_BAUD);
    NST_USART_CR1 = (1u << 5) | (1u << 3) | (1u << 2) | 1u; /* RXNEIE, TE, RE, UE */
    nst_uart_rx_release();
}

/* An overrun interrupts too, and again until it is cleared. */
void nst_uart_rx_handler(void) {
    const uint32_t state = NST_USART_ISR;
    if ((state & NST_USART_RXNE) != 0u) {
        nst_uart_put((uint8_t)NST_USART_RDR);
    }
    NST_USART_ICR = state & NST_USART_ERRORS;
    nst_usart_overruns |= state & NST_USART_ORE;
}

void nst_uart_resume(void) {
    nst_uart_rx_handler();
}

uintptr_t nst_uart_send_register(void) {
    return NST_UART_BASE + 0x28u;
}

int nst_uart_overran(void) {
    const uint32_t overran = nst_usart_overruns;
    nst_usart_overruns = 0u;
    return overran != 0u;
}

void nst_port_write(uint8_t byte) {
    while ((NST_USART_ISR & NST_USART_TXE) == 0u) {
    }
    NST_USART_TDR = byte;
}

void nst_port_flush(void) {
    while ((NST_USART_ISR & NST_USART_TC) == 0u) {
    }
}
