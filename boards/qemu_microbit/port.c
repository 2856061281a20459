/* port.c - BBC micro:bit (nRF51822), as QEMU models it.
 *
 * The nRF51 has no SysTick.  TIMER0 counts 32 bits at 16 MHz: 2.048 ticks an instruction.  QEMU rounds an
 * odd number of ticks down to nanoseconds at each reading, half a nanosecond, of which the host evens
 * out some sixty readings' worth.  A time limit is a comparison of the same counter: the longest is
 * 268 s of the board's time, after which the counter would begin anew.  Registers: nRF51 Series Reference
 * Manual 3.0, chapter 18; the interrupt's number is the device's address / 0x1000.
 */
#include "cortex_m.h"
#include "uart.h"

#define NST_TIMER0_START NST_REG32(0x40008000u)
#define NST_TIMER0_STOP NST_REG32(0x40008004u)
#define NST_TIMER0_CLEAR NST_REG32(0x4000800Cu)
#define NST_TIMER0_CAPTURE0 NST_REG32(0x40008040u)
#define NST_TIMER0_COMPARE1 NST_REG32(0x40008144u)
#define NST_TIMER0_INTENSET NST_REG32(0x40008304u)
#define NST_TIMER0_INTENCLR NST_REG32(0x40008308u)
#define NST_TIMER0_BITMODE NST_REG32(0x40008508u)
#define NST_TIMER0_PRESCALER NST_REG32(0x40008510u)
#define NST_TIMER0_CC0 NST_REG32(0x40008540u)
#define NST_TIMER0_CC1 NST_REG32(0x40008544u)
#define NST_TIMER0_IRQ 8u
#define NST_TIMER0_INT_COMPARE1 (1u << 17)

#define NST_IRQ_COUNT 32u

typedef NST_VECTORS(NST_IRQ_COUNT) nst_vector_table;

extern const nst_vector_table nst_vectors;
NST_VECTORS_PLACE const nst_vector_table nst_vectors = {
    nst_handler_stack_top,
    NST_CORE_VECTORS,
    {nst_fault_entry, nst_fault_entry, nst_uart_rx_handler, nst_fault_entry, NST_UNUSED_4,
     nst_limit_entry, nst_fault_entry, nst_fault_entry, nst_fault_entry, NST_UNUSED_4, NST_UNUSED_16}};

void nst_port_start(void) {
    nst_uart_start();
}

void nst_port_clock_start(uint32_t limit_ms) {
    nst_uart_rx_hold();
    NST_TIMER0_STOP = 1u;
    NST_TIMER0_CLEAR = 1u;
    NST_TIMER0_BITMODE = 3u; /* 32 bits */
    NST_TIMER0_PRESCALER = 0u;
    NST_TIMER0_COMPARE1 = 0u;
    if (limit_ms != 0u) {
        const uint64_t ticks = (uint64_t)limit_ms * (NST_CLOCK_HZ / 1000u);
        NST_TIMER0_CC1 = ticks > 0xFFFFFFFFu ? 0xFFFFFFFFu : (uint32_t)ticks;
        NST_TIMER0_INTENSET = NST_TIMER0_INT_COMPARE1;
        NST_NVIC_ISER(0) = 1u << NST_TIMER0_IRQ;
    }
    NST_TIMER0_START = 1u;
}

uint64_t nst_port_clock(void) {
    NST_TIMER0_CAPTURE0 = 1u;
    return NST_TIMER0_CC0;
}

void nst_port_clock_stop(void) {
    NST_TIMER0_STOP = 1u;
    NST_TIMER0_INTENCLR = NST_TIMER0_INT_COMPARE1;
    NST_TIMER0_COMPARE1 = 0u;
    nst_uart_rx_release();
}
