/* nrf_uart.c - console on the UART of a Nordic nRF51 (nRF51 Series Reference Manual 3.0, chapter 29).
 *
 * The board defines NST_UART_BASE, NST_UART_RX_IRQ, NST_UART_RX_PIN and NST_UART_TX_PIN.  The receiver keeps
 * 6 bytes.
 */
#include "core.h"
#include "uart.h"

#define NST_UART_STARTRX NST_REG32(NST_UART_BASE + 0x000u)
#define NST_UART_STARTTX NST_REG32(NST_UART_BASE + 0x008u)
#define NST_UART_RXDRDY NST_REG32(NST_UART_BASE + 0x108u)
#define NST_UART_TXDRDY NST_REG32(NST_UART_BASE + 0x11Cu)
#define NST_UART_INTENSET NST_REG32(NST_UART_BASE + 0x304u)
#define NST_UART_ERRORSRC NST_REG32(NST_UART_BASE + 0x480u)
#define NST_UART_ENABLE NST_REG32(NST_UART_BASE + 0x500u)
#define NST_UART_PSELTXD NST_REG32(NST_UART_BASE + 0x50Cu)
#define NST_UART_PSELRXD NST_REG32(NST_UART_BASE + 0x514u)
#define NST_UART_RXD NST_REG32(NST_UART_BASE + 0x518u)
#define NST_UART_TXD NST_REG32(NST_UART_BASE + 0x51Cu)
#define NST_UART_BAUDRATE NST_REG32(NST_UART_BASE + 0x524u)
#define NST_UART_OVERRUN 1u

#ifndef NST_UART_BAUD
#define NST_UART_BAUD 115200u
#endif

static uint8_t nst_uart_sending; /* a byte was written whose TXDRDY has not been seen */

void nst_uart_start(void) {
    NST_UART_PSELTXD = NST_UART_TX_PIN;
    NST_UART_PSELRXD = NST_UART_RX_PIN;
    /* Bauds in units of 16 MHz / 2^32, in steps of 2^12: the manual's table, for any rate. */
    NST_UART_BAUDRATE = ((uint32_t)(((uint64_t)NST_UART_BAUD << 32) / 16000000u) + 0x800u) & 0xFFFFF000u;
    NST_UART_ENABLE = 4u;
    NST_UART_INTENSET = 1u << 2; /* RXDRDY */
    NST_UART_RXDRDY = 0u;
    NST_UART_TXDRDY = 0u;
    NST_UART_STARTRX = 1u;
    NST_UART_STARTTX = 1u;
    nst_uart_rx_release();
}

/* The event is cleared before the byte is taken, which makes the next one an event. */
void nst_uart_rx_handler(void) {
    NST_UART_RXDRDY = 0u;
    nst_uart_put((uint8_t)NST_UART_RXD);
}

uintptr_t nst_uart_send_register(void) {
    return NST_UART_BASE + 0x51Cu;
}

int nst_uart_overran(void) {
    const uint32_t overran = NST_UART_ERRORSRC & NST_UART_OVERRUN;
    NST_UART_ERRORSRC = overran;
    return overran != 0u;
}

void nst_port_write(uint8_t byte) {
    nst_port_flush();
    NST_UART_TXDRDY = 0u;
    NST_UART_TXD = byte;
    nst_uart_sending = 1u;
}

void nst_port_flush(void) {
    while (nst_uart_sending != 0u && NST_UART_TXDRDY == 0u) {
    }
    nst_uart_sending = 0u;
}
