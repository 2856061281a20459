/* cmsdk_uart.c - console on the UART of Arm's Cortex-M System Design Kit (DDI 0479, 4.3).
 *
 * The board defines NST_UART_BASE and NST_UART_RX_IRQ.
 */
#include "core.h"
#include "uart.h"

#define NST_UART_DATA NST_REG32(NST_UART_BASE + 0x00u)
#define NST_UART_STATE NST_REG32(NST_UART_BASE + 0x04u)
#define NST_UART_CTRL NST_REG32(NST_UART_BASE + 0x08u)
#define NST_UART_INTCLEAR NST_REG32(NST_UART_BASE + 0x0Cu)
#define NST_UART_BAUDDIV NST_REG32(NST_UART_BASE + 0x10u)
#define NST_UART_TX_FULL 1u
#define NST_UART_RX_OVERRUN 8u

#ifndef NST_UART_BAUD
#define NST_UART_BAUD 115200u
#endif

void nst_uart_start(void) {
    NST_UART_BAUDDIV = NST_CLOCK_HZ / NST_UART_BAUD;
    NST_UART_CTRL = 0x0Bu; /* transmit, receive, receive interrupt */
    nst_uart_rx_release();
}

/* The interrupt says that a byte is there, and is cleared before the byte is taken: the next may come at
 * once.  Each access to a device costs QEMU microseconds, so there are two and no more. */
void nst_uart_rx_handler(void) {
    NST_UART_INTCLEAR = 2u;
    nst_uart_put((uint8_t)NST_UART_DATA);
}

uintptr_t nst_uart_send_register(void) {
    return NST_UART_BASE + 0x00u;
}

int nst_uart_overran(void) {
    const uint32_t overran = NST_UART_STATE & NST_UART_RX_OVERRUN;
    NST_UART_STATE = overran;
    return overran != 0u;
}

void nst_port_write(uint8_t byte) {
    nst_port_flush();
    NST_UART_DATA = byte;
}

void nst_port_flush(void) {
    while ((NST_UART_STATE & NST_UART_TX_FULL) != 0u) {
    }
}
