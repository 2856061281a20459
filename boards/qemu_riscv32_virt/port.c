/* port.c - QEMU's RISC-V board `virt` with a 32-bit core.
 *
 * The clock is the counter minstret, which under -icount shows the board's time in nanoseconds: 64 for each
 * instruction.  The CLINT's timer, at 10 MHz, ends what takes too long and beats; what a beat costs is found at the
 * start and taken off.  Addresses: QEMU's documentation of `virt` and its device tree (-machine dumpdtb=FILE).
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

/* Together, so that code has one address to find. */
static struct {
    uint64_t base;               /* of the clock */
    uint64_t every;              /* ticks of the CLINT from beat to beat */
    uint64_t next;               /* the tick of the next beat */
    volatile uint32_t beats;     /* in this run */
    uint32_t last;               /* the beat that is too late */
    uint32_t wanted_ms;          /* from beat to beat in the next run */
    uint32_t cost;               /* nanoseconds: the way into the handler, through it and out again */
    volatile uint8_t *send;      /* where a beat writes a zero */
    volatile uint8_t nowhere;
} nst_it;

void nst_irq_handler(uint32_t irq) {
    if (irq == NST_UART_RX_IRQ) {
        nst_uart_rx_handler();
    }
}

/* The way to a beat has no branch that depends on a time, so each takes the same number of instructions. */
int nst_timer_handler(void) {
    nst_it.beats = nst_it.beats + 1u;
    if (nst_it.beats == nst_it.last) {
        return 0;
    }
    nst_it.next += nst_it.every;
    NST_CLINT_TIMECMP_HIGH = 0xFFFFFFFFu;
    NST_CLINT_TIMECMP_LOW = (uint32_t)nst_it.next;
    NST_CLINT_TIMECMP_HIGH = (uint32_t)(nst_it.next >> 32);
    *nst_it.send = 0u;
    return 1;
}

int nst_port_beat(uint32_t beat_ms) {
    nst_it.wanted_ms = beat_ms;
    return 1;
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

/* Return the nanoseconds of a few instructions with the timer's interrupt among them, or without. */
static uint32_t nst_cost_around(uint32_t with) {
    const uint32_t start = (uint32_t)nst_clock_now();
    NST_CSR_SET("mie", with);
    __asm__ volatile("nop\n nop\n nop\n nop" ::: "memory");
    NST_CSR_CLEAR("mie", with);
    return (uint32_t)nst_clock_now() - start;
}

void nst_port_start(void) {
    nst_irq_start();
    nst_it.send = &nst_it.nowhere;
    (void)nst_timer_handler(); /* another is due at time 0, which has passed */
    nst_it.every = 1ull << 62;
    nst_it.cost = nst_cost_around(NST_MIE_TIMER) - nst_cost_around(0u);
    nst_uart_start();
}

void nst_port_reset(void) {
    NST_TEST_FINISHER = NST_TEST_RESET;
    for (;;) {
    }
}

/* Without beats the limit is the first. */
void nst_port_clock_start(uint32_t limit_ms) {
    const uint32_t every_ms = nst_it.wanted_ms != 0u ? nst_it.wanted_ms : limit_ms;
    nst_uart_rx_hold();
    NST_CSR_CLEAR("mie", NST_MIE_TIMER);
    if (every_ms != 0u) {
        nst_it.last = 0u;
        nst_it.every = (uint64_t)every_ms * NST_CLINT_TICKS_PER_MS;
        nst_it.next = (uint64_t)NST_CLINT_TIME_HIGH << 32 | NST_CLINT_TIME_LOW;
        nst_it.send = (volatile uint8_t *)nst_uart_send_register();
        (void)nst_timer_handler();
        nst_it.last = (limit_ms - 1u) / every_ms + 1u; /* without a limit after 49 days */
        NST_CSR_SET("mie", NST_MIE_TIMER);
    }
    nst_it.wanted_ms = 0u;
    nst_it.beats = 0u;
    nst_it.base = nst_clock_now();
}

uint64_t nst_port_clock(void) {
    uint64_t now;
    uint32_t beats;
    NST_CSR_CLEAR("mstatus", NST_MSTATUS_MIE);
    now = nst_clock_now();
    beats = nst_it.beats;
    NST_CSR_SET("mstatus", NST_MSTATUS_MIE);
    return now - nst_it.base - (uint64_t)beats * nst_it.cost;
}

void nst_port_clock_stop(void) {
    NST_CSR_CLEAR("mie", NST_MIE_TIMER);
    nst_uart_rx_release();
}
