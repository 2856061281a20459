/* stm32_usart.c - console on an STM32 USART of the first kind (RM0041 23.6, RM0090 30.6).
 *
 * The board defines NST_UART_BASE, NST_UART_RX_IRQ and NST_UART_CLOCK_HZ, the clock of the USART's bus, and
 * has given the USART its clock and its pins before nst_uart_start.
 */
#include "core.h"
#include "uart.h"

#define NST_USART_SR NST_REG32(NST_UART_BASE + 0x00u)
#define NST_USART_DR NST_REG32(NST_UART_BASE + 0x04u)
#define NST_USART_BRR NST_REG32(NST_UART_BASE + 0x08u)
#define NST_USART_CR1 NST_REG32(NST_UART_BASE + 0x0Cu)
#define NST_USART_ORE (1u << 3)
#define NST_USART_RXNE (1u << 5)
#define NST_USART_TC (1u << 6)
#define NST_USART_TXE (1u << 7)

#ifndef NST_UART_BAUD
#define NST_UART_BAUD 115200u
#endif

static volatile uint32_t nst_usart_overruns;

void nst_uart_start(void) {
    NST_USART_BRR = (NST_UART_CLOCK_HZ + NST_UART_BAUD / 2u) / NST_UART_BAUD; /* oversampling by 16 */
    NST_USART_CR1 = (1u << 13) | (1u << 5) | (1u << 3) | (1u << 2); /* UE, RXNEIE, TE, RE */
    nst_uart_rx_release();
}

/* A read of the status, then of the data, takes the byte and clears an overrun.  In QEMU the next byte may
 * come with that read, and its interrupt is then lost. */
void nst_uart_rx_handler(void) {
    uint32_t state = NST_USART_SR;
    while ((state & (NST_USART_RXNE | NST_USART_ORE)) != 0u && !nst_uart_full()) {
        const uint8_t byte = (uint8_t)NST_USART_DR;
        nst_usart_overruns |= state & NST_USART_ORE;
        if ((state & NST_USART_RXNE) != 0u) {
            nst_uart_put(byte);
        }
        state = NST_USART_SR;
    }
}

void nst_uart_resume(void) {
    nst_uart_rx_handler();
}

uintptr_t nst_uart_send_register(void) {
    return NST_UART_BASE + 0x04u;
}

int nst_uart_overran(void) {
    const uint32_t overran = nst_usart_overruns;
    nst_usart_overruns = 0u;
    return overran != 0u;
}

void nst_port_write(uint8_t byte) {
    while ((NST_USART_SR & NST_USART_TXE) == 0u) {
    }
    NST_USART_DR = byte;
}

void nst_port_flush(void) {
    while ((NST_USART_SR & NST_USART_TC) == 0u) {
    }
}
