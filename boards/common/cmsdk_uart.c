/* cmsdk_uart.c - see cmsdk_uart.h.
 *
 * The receiver has one byte of its own, so an interrupt moves bytes to a ring; the program sleeps while
 * the ring is empty.
 */
#include "cmsdk_uart.h"

#include "cortex_m.h"

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

#ifndef NST_UART_LOOKS
#define NST_UART_LOOKS 2000u
#endif

#define NST_RING_BYTES 256u /* a power of two */

static uint8_t nst_ring[NST_RING_BYTES];
static volatile uint32_t nst_ring_in;
static uint32_t nst_ring_out;
static volatile uint32_t nst_ring_lost;

void nst_uart_start(void) {
    NST_UART_BAUDDIV = NST_CLOCK_HZ / NST_UART_BAUD;
    NST_UART_CTRL = 0x0Bu; /* transmit, receive, receive interrupt */
    nst_uart_rx_release();
}

/* The interrupt says that a byte is there, and is cleared before the byte is taken: the next may come at
 * once.  Each access to a device costs QEMU microseconds, so there are two and no more. */
void nst_uart_rx_handler(void) {
    const uint32_t in = nst_ring_in;
    uint8_t byte;
    NST_UART_INTCLEAR = 2u;
    byte = (uint8_t)NST_UART_DATA;
    if (in - nst_ring_out < NST_RING_BYTES) {
        nst_ring[in % NST_RING_BYTES] = byte;
        nst_ring_in = in + 1u;
    } else {
        nst_ring_lost = nst_ring_lost + 1u;
    }
}

void nst_uart_rx_hold(void) {
    NST_NVIC_ICER(NST_UART_RX_IRQ / 32u) = 1u << (NST_UART_RX_IRQ % 32u);
    __asm__ volatile("dsb\n isb" ::: "memory");
}

void nst_uart_rx_release(void) {
    NST_NVIC_ISER(NST_UART_RX_IRQ / 32u) = 1u << (NST_UART_RX_IRQ % 32u);
}

int nst_port_read(void) {
    const uint32_t out = nst_ring_out;
    int byte;
    if (out == nst_ring_in) {
        return -1;
    }
    byte = nst_ring[out % NST_RING_BYTES];
    nst_ring_out = out + 1u;
    return byte;
}

/* Look for a while first: in the middle of a transfer the next byte is near, and falling asleep and
 * waking up costs QEMU two switches of threads.  Interrupts wake a core from WFI also while PRIMASK holds
 * them off, so no byte slips in between the question and the sleep. */
void nst_port_wait(void) {
    uint32_t i;
    for (i = 0u; i < NST_UART_LOOKS; i++) {
        if (nst_ring_out != nst_ring_in) {
            return;
        }
    }
    __asm__ volatile("cpsid i" ::: "memory");
    if (nst_ring_out == nst_ring_in) {
        __asm__ volatile("wfi" ::: "memory");
    }
    __asm__ volatile("cpsie i" ::: "memory");
}

void nst_port_write(uint8_t byte) {
    while ((NST_UART_STATE & NST_UART_TX_FULL) != 0u) {
    }
    NST_UART_DATA = byte;
}

void nst_port_flush(void) {
    while ((NST_UART_STATE & NST_UART_TX_FULL) != 0u) {
    }
}

uint32_t nst_port_lost_bytes(void) {
    if ((NST_UART_STATE & NST_UART_RX_OVERRUN) != 0u) { /* one or more bytes */
        NST_UART_STATE = NST_UART_RX_OVERRUN;
        nst_ring_lost = nst_ring_lost + 1u;
    }
    return nst_ring_lost;
}
