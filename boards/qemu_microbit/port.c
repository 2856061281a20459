/* port.c - BBC micro:bit (nRF51822), as QEMU models it.
 *
 * The nRF51 has no SysTick.  TIMER0 counts 32 bits at 16 MHz: 2.048 ticks an instruction.  QEMU rounds an
 * odd number of ticks down to nanoseconds at each reading, half a nanosecond, of which the host evens
 * out some sixty readings' worth.  A time limit is a comparison of the same counter: the longest is
 * 268 s of the board's time, after which the counter would begin anew.  Another is the heartbeat, whose
 * handler takes 125 instructions, which are 256 ticks.  Registers: nRF51 Series Reference Manual 3.0,
 * chapters 18 and 29; the interrupt's number is the device's address / 0x1000.
 */
#include "cortex_m.h"
#include "uart.h"

#define NST_TIMER0_START NST_REG32(0x40008000u)
#define NST_TIMER0_STOP NST_REG32(0x40008004u)
#define NST_TIMER0_CLEAR NST_REG32(0x4000800Cu)
#define NST_TIMER0_CAPTURE0 NST_REG32(0x40008040u)
#define NST_TIMER0_COMPARE1 NST_REG32(0x40008144u)
#define NST_TIMER0_COMPARE2 NST_REG32(0x40008148u)
#define NST_TIMER0_INTENSET NST_REG32(0x40008304u)
#define NST_TIMER0_INTENCLR NST_REG32(0x40008308u)
#define NST_TIMER0_BITMODE NST_REG32(0x40008508u)
#define NST_TIMER0_PRESCALER NST_REG32(0x40008510u)
#define NST_TIMER0_CC0 NST_REG32(0x40008540u)
#define NST_TIMER0_CC1 NST_REG32(0x40008544u)
#define NST_TIMER0_CC2 NST_REG32(0x40008548u)
#define NST_TIMER0_IRQ 8u
#define NST_TIMER0_INT_COMPARE1 (1u << 17)
#define NST_TIMER0_INT_COMPARE2 (1u << 18)
#define NST_UART_TXDRDY NST_REG32(NST_UART_BASE + 0x11Cu)
#define NST_BEAT_TICKS 256u

#define NST_IRQ_COUNT 32u

typedef NST_VECTORS(NST_IRQ_COUNT) nst_vector_table;

void nst_timer_entry(void);

extern const nst_vector_table nst_vectors;
NST_VECTORS_PLACE const nst_vector_table nst_vectors = {
    nst_handler_stack_top,
    NST_CORE_VECTORS,
    {nst_fault_entry, nst_fault_entry, nst_uart_rx_handler, nst_fault_entry, NST_UNUSED_4,
     nst_timer_entry, nst_fault_entry, nst_fault_entry, nst_fault_entry, NST_UNUSED_4, NST_UNUSED_16}};

static uint32_t nst_beat_ms; /* wanted in the next run */

/* Named by nst_timer_entry. */
#ifdef __cplusplus
extern "C" {
#endif
extern volatile uint32_t nst_beats, nst_beat_every;
#ifdef __cplusplus
}
#endif
volatile uint32_t nst_beats = 0u;      /* in this run */
volatile uint32_t nst_beat_every = 0u; /* ticks */

/* A beat: forget the comparison, send a zero, set the next comparison, count.  Otherwise the limit has come. */
__attribute__((naked)) void nst_timer_entry(void) {
    __asm__ volatile(
        "ldr r0, =0x40008148\n" /* COMPARE2 */
        "ldr r1, [r0]\n"
        "cmp r1, #0\n"
        "beq 1f\n"
        "movs r1, #0\n"
        "str r1, [r0]\n"
        "ldr r0, =%c0\n" /* TXDRDY, then TXD */
        "str r1, [r0]\n"
        "ldr r0, =%c1\n"
        "str r1, [r0]\n"
        "ldr r0, =0x40008548\n" /* CC2 */
        "ldr r1, [r0]\n"
        "ldr r2, =nst_beat_every\n"
        "ldr r2, [r2]\n"
        "adds r1, r1, r2\n"
        "str r1, [r0]\n"
        "ldr r0, =nst_beats\n"
        "ldr r1, [r0]\n"
        "adds r1, r1, #1\n"
        "str r1, [r0]\n"
        ".rept 104\n"
        "nop\n"
        ".endr\n"
        "bx lr\n"
        "1: ldr r0, =nst_limit_entry\n"
        "bx r0\n"
        :
        : "i"(NST_UART_BASE + 0x11Cu), "i"(NST_UART_BASE + 0x51Cu));
}

int nst_port_beat(uint32_t beat_ms) {
    nst_beat_ms = beat_ms;
    return 1;
}

void nst_port_start(void) {
    nst_uart_start();
}

static uint32_t nst_ticks_of(uint32_t ms) {
    const uint64_t ticks = (uint64_t)ms * (NST_CLOCK_HZ / 1000u);
    return ticks > 0xFFFFFFFFu ? 0xFFFFFFFFu : (uint32_t)ticks;
}

/* Let a comparison interrupt; `bit` is its in INTENSET. */
static void nst_timer_interrupt(uint32_t bit) {
    NST_TIMER0_INTENSET = bit;
    NST_NVIC_ISER(0) = 1u << NST_TIMER0_IRQ;
}

void nst_port_clock_start(uint32_t limit_ms) {
    nst_uart_rx_hold();
    NST_TIMER0_STOP = 1u;
    NST_TIMER0_CLEAR = 1u;
    NST_TIMER0_BITMODE = 3u; /* 32 bits */
    NST_TIMER0_PRESCALER = 0u;
    NST_TIMER0_COMPARE1 = 0u;
    if (limit_ms != 0u) {
        NST_TIMER0_CC1 = nst_ticks_of(limit_ms);
        nst_timer_interrupt(NST_TIMER0_INT_COMPARE1);
    }
    nst_beats = 0u;
    NST_TIMER0_COMPARE2 = 0u;
    if (nst_beat_ms != 0u) {
        nst_beat_every = nst_ticks_of(nst_beat_ms);
        NST_TIMER0_CC2 = nst_beat_every;
        nst_timer_interrupt(NST_TIMER0_INT_COMPARE2);
        nst_beat_ms = 0u;
    }
    NST_TIMER0_START = 1u;
}

uint64_t nst_port_clock(void) {
    uint32_t value, beats;
    __asm__ volatile("cpsid i" ::: "memory");
    NST_TIMER0_CAPTURE0 = 1u;
    value = NST_TIMER0_CC0;
    beats = nst_beats;
    __asm__ volatile("cpsie i" ::: "memory");
    return value - (uint64_t)beats * NST_BEAT_TICKS;
}

void nst_port_clock_stop(void) {
    NST_TIMER0_STOP = 1u;
    NST_TIMER0_INTENCLR = NST_TIMER0_INT_COMPARE1 | NST_TIMER0_INT_COMPARE2;
    NST_TIMER0_COMPARE1 = 0u;
    while (nst_beats != 0u && NST_UART_TXDRDY == 0u) { /* the last beat is on its way */
    }
    nst_uart_rx_release();
}
