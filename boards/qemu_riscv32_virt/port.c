/* port.c - QEMU's RISC-V board `virt` with a 32-bit core.
 *
 * The clock is the counter minstret, which under -icount shows the board's time in nanoseconds: 64 for each
 * instruction.  The time limit is the CLINT's timer, at 10 MHz.  Addresses: QEMU's documentation of `virt`
 * and its device tree (-machine dumpdtb=FILE).
 */
#include "riscv.h"
#include "uart.h"

#define NST_CLINT_TIMECMP_LOW NST_REG32(0x02004000u)
#define NST_CLINT_TIMECMP_HIGH NST_REG32(0x02004004u)
#define NST_CLINT_TIME_LOW NST_REG32(0x0200BFF8u)
#define NST_CLINT_TIME_HIGH NST_REG32(0x0200BFFCu)
#define NST_CLINT_TICKS_PER_MS 10000u
#define NST_TEST_FINISHER NST_REG32(0x00100000u)
#define NST_TEST_RESET 0x7777u

static uint64_t nst_clock_base;

void nst_irq_handler(uint32_t irq) {
    if (irq == NST_UART_RX_IRQ) {
        nst_uart_rx_handler();
    }
}

void nst_port_start(void) {
    nst_irq_start();
    nst_uart_start();
}

void nst_port_reset(void) {
    NST_TEST_FINISHER = NST_TEST_RESET;
    for (;;) {
    }
}

/* Without a branch: the upper half before or after the lower was read, whichever it belongs to. */
static inline uint64_t nst_clock_now(void) {
    uint32_t before, low, after, late;
    NST_CSR_READ("minstreth", before);
    NST_CSR_READ("minstret", low);
    NST_CSR_READ("minstreth", after);
    late = 0u - (low >> 31);
    return (uint64_t)((before & late) | (after & ~late)) << 32 | low;
}

void nst_port_clock_start(uint32_t limit_ms) {
    nst_uart_rx_hold();
    NST_CSR_CLEAR("mie", NST_MIE_TIMER);
    if (limit_ms != 0u) {
        uint64_t end = (uint64_t)NST_CLINT_TIME_HIGH << 32 | NST_CLINT_TIME_LOW;
        end += (uint64_t)limit_ms * NST_CLINT_TICKS_PER_MS;
        NST_CLINT_TIMECMP_HIGH = 0xFFFFFFFFu;
        NST_CLINT_TIMECMP_LOW = (uint32_t)end;
        NST_CLINT_TIMECMP_HIGH = (uint32_t)(end >> 32);
        NST_CSR_SET("mie", NST_MIE_TIMER);
    }
    nst_clock_base = nst_clock_now();
}

uint64_t nst_port_clock(void) {
    return nst_clock_now() - nst_clock_base;
}

void nst_port_clock_stop(void) {
    NST_CSR_CLEAR("mie", NST_MIE_TIMER);
    nst_uart_rx_release();
}
