/* uart.c - see uart.h.
 *
 * Receivers have room for a byte or a few, so an interrupt moves bytes to a ring; the program sleeps while
 * the ring is empty.  While the ring is nearly full the interrupt is kept away: a receiver that can stop its
 * sender then does.
 */
#include "uart.h"

#include "core.h"

#ifndef NST_UART_LOOKS
#define NST_UART_LOOKS 2000u
#endif

#define NST_RING_BYTES 256u /* a power of two */
#define NST_RING_SPARE 4u

static uint8_t nst_ring[NST_RING_BYTES];
static volatile uint32_t nst_ring_in;
static uint32_t nst_ring_out;
static volatile uint32_t nst_ring_lost;
static volatile uint8_t nst_ring_full;

void nst_uart_put(uint8_t byte) {
    const uint32_t in = nst_ring_in;
    if (in - nst_ring_out < NST_RING_BYTES) {
        nst_ring[in % NST_RING_BYTES] = byte;
        nst_ring_in = in + 1u;
        if (in + 1u - nst_ring_out >= NST_RING_BYTES - NST_RING_SPARE) {
            nst_ring_full = 1u;
            nst_irq_hold(NST_UART_RX_IRQ);
        }
    } else {
        nst_ring_lost = nst_ring_lost + 1u;
    }
}

int nst_uart_full(void) {
    return nst_ring_full != 0u;
}

__attribute__((weak)) void nst_uart_resume(void) {
}

void nst_uart_rx_hold(void) {
    nst_irq_hold(NST_UART_RX_IRQ);
}

void nst_uart_rx_release(void) {
    if (nst_ring_full == 0u) {
        nst_irq_release(NST_UART_RX_IRQ);
    }
}

int nst_port_read(void) {
    const uint32_t out = nst_ring_out;
    int byte;
    if (out == nst_ring_in) {
        return -1;
    }
    byte = nst_ring[out % NST_RING_BYTES];
    nst_ring_out = out + 1u;
    if (nst_ring_full != 0u && nst_ring_in - nst_ring_out <= NST_RING_BYTES / 2u) {
        nst_ring_full = 0u;
        nst_uart_resume();
        nst_uart_rx_release();
    }
    return byte;
}

/* Look for a while first: in the middle of a transfer the next byte is near, and falling asleep and
 * waking up costs QEMU two switches of threads. */
void nst_port_wait(void) {
    uint32_t i;
    for (i = 0u; i < NST_UART_LOOKS; i++) {
        if (nst_ring_out != nst_ring_in) {
            return;
        }
    }
    nst_sleep_while(&nst_ring_in, nst_ring_out);
}

uint32_t nst_port_lost_bytes(void) {
    if (nst_uart_overran()) {
        nst_ring_lost = nst_ring_lost + 1u;
    }
    return nst_ring_lost;
}
