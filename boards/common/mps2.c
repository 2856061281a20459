/* mps2.c - port of Arm's MPS2 with the image of Application Note AN385 (M3), AN386 (M4) or AN500 (M7).
 *
 * They have the same devices.  Addresses and interrupt numbers: AN386, tables 3-1 and 4-1.
 *
 * TIMER0 counts down at the system clock.  Under `-icount shift=6` an instruction takes 64 ns, 1.6
 * ticks, and the timer is started by an instruction: the ticks that passed since are floor(1.6 n), from
 * which the host computes n exactly.  Its 32 bits last 171 s of the board's time; whole turns are told
 * from the 100 Hz counter of FPGAIO, without an interrupt that would count too.  The time limit is TIMER1
 * of the dual timer, with its clock divided by 256.  Beats are TIMER1's; its handler takes 125 instructions, no more
 * and no fewer: 200 ticks, which are taken off.  Where the program keeps interrupts away, the watchdog ends it a
 * quarter later, by the interrupt that cannot be kept away.
 */
#include "cortex_m.h"
#include "uart.h"

#define NST_TIMER0_CTRL NST_REG32(0x40000000u)
#define NST_TIMER0_VALUE NST_REG32(0x40000004u)
#define NST_TIMER0_RELOAD NST_REG32(0x40000008u)
#define NST_TIMER1_CTRL NST_REG32(0x40001000u)
#define NST_TIMER1_VALUE NST_REG32(0x40001004u)
#define NST_TIMER1_RELOAD NST_REG32(0x40001008u)
#define NST_TIMER1_INTCLEAR NST_REG32(0x4000100Cu)
#define NST_TIMER1_IRQ 9u
#define NST_WATCHDOG_LOAD NST_REG32(0x40008000u)
#define NST_WATCHDOG_CONTROL NST_REG32(0x40008008u)
#define NST_WATCHDOG_INTCLEAR NST_REG32(0x4000800Cu)
#define NST_WATCHDOG_LOCK NST_REG32(0x40008C00u)
#define NST_WATCHDOG_KEY 0x1ACCE551u
#define NST_DUAL_LOAD NST_REG32(0x40002000u)
#define NST_DUAL_CONTROL NST_REG32(0x40002008u)
#define NST_DUAL_INTCLR NST_REG32(0x4000200Cu)
#define NST_DUAL_IRQ 10u
#define NST_FPGAIO_CLK100HZ NST_REG32(0x40028014u)

#define NST_IRQ_COUNT 32u

typedef NST_VECTORS(NST_IRQ_COUNT) nst_vector_table;

void nst_beat_entry(void);

extern const nst_vector_table nst_vectors;
NST_VECTORS_PLACE const nst_vector_table nst_vectors = {
    nst_handler_stack_top,
    NST_CORE_VECTORS_AND(nst_limit_entry, nst_fault_entry),
    {nst_uart_rx_handler, NST_UNUSED_8, nst_beat_entry, nst_limit_entry, nst_fault_entry,
     nst_fault_entry, nst_fault_entry, nst_fault_entry, nst_fault_entry, NST_UNUSED_16}};

static uint32_t nst_start_100hz;
static uint32_t nst_beat_ms; /* wanted in the next run */

#define NST_BEAT_TICKS 200u
/* Named by nst_beat_entry. */
#ifdef __cplusplus
extern "C" {
#endif
extern volatile uint32_t nst_beats;
#ifdef __cplusplus
}
#endif
volatile uint32_t nst_beats = 0u;

/* Clear TIMER1's interrupt, send a zero (the console's DATA is its first register), count. */
__attribute__((naked)) void nst_beat_entry(void) {
    __asm__ volatile(
        "ldr r0, =0x4000100C\n"
        "movs r1, #1\n"
        "str r1, [r0]\n"
        "ldr r0, =%c0\n"
        "movs r1, #0\n"
        "str r1, [r0]\n"
        "ldr r0, =nst_beats\n"
        "ldr r1, [r0]\n"
        "adds r1, r1, #1\n"
        "str r1, [r0]\n"
        ".rept 114\n"
        "nop\n"
        ".endr\n"
        "bx lr\n"
        :
        : "i"(NST_UART_BASE));
}

int nst_port_beat(uint32_t beat_ms) {
    nst_beat_ms = beat_ms;
    return 1;
}

void nst_port_start(void) {
    nst_uart_start();
}

void nst_port_clock_start(uint32_t limit_ms) {
    nst_uart_rx_hold();
    NST_DUAL_CONTROL = 0u;
    NST_DUAL_INTCLR = 1u;
    if (limit_ms != 0u) {
        const uint64_t ticks = (uint64_t)limit_ms * (NST_CLOCK_HZ / 1000u) / 256u;
        NST_DUAL_LOAD = ticks == 0u ? 1u : ticks > 0xFFFFFFFFu ? 0xFFFFFFFFu : (uint32_t)ticks;
        NST_DUAL_CONTROL = 0xEBu; /* enable, periodic, interrupt, divide by 256, 32 bits, one-shot */
        NST_NVIC_ISER(0) = 1u << NST_DUAL_IRQ;
        NST_WATCHDOG_LOCK = NST_WATCHDOG_KEY;
        NST_WATCHDOG_LOAD = ticks > 0xFFFFFFFFu / 320u ? 0xFFFFFFFFu : (uint32_t)ticks * 320u;
        NST_WATCHDOG_INTCLEAR = 1u; /* it may have run out while nobody listened */
        NST_WATCHDOG_CONTROL = 1u;
    }
    nst_beats = 0u;
    if (nst_beat_ms != 0u) {
        const uint64_t ticks = (uint64_t)nst_beat_ms * (NST_CLOCK_HZ / 1000u);
        NST_TIMER1_RELOAD = NST_TIMER1_VALUE = ticks > 0xFFFFFFFFu ? 0xFFFFFFFFu : (uint32_t)ticks;
        NST_TIMER1_CTRL = 9u; /* run, interrupt */
        nst_irq_release(NST_TIMER1_IRQ);
        nst_beat_ms = 0u;
    }
    NST_TIMER0_CTRL = 0u;
    NST_TIMER0_RELOAD = 0xFFFFFFFFu;
    NST_TIMER0_VALUE = 0xFFFFFFFFu;
    nst_start_100hz = NST_FPGAIO_CLK100HZ;
    NST_TIMER0_CTRL = 1u;
}

uint64_t nst_port_clock(void) {
    uint32_t low, coarse, beats;
    uint64_t about;
    __asm__ volatile("cpsid i" ::: "memory");
    low = 0xFFFFFFFFu - NST_TIMER0_VALUE;
    coarse = NST_FPGAIO_CLK100HZ - nst_start_100hz;
    beats = nst_beats;
    __asm__ volatile("cpsie i" ::: "memory");
    /* The turns that bring `low` next to the coarse count, which is within one step of 10 ms. */
    about = (uint64_t)coarse * (NST_CLOCK_HZ / 100u) + 0x80000000u;
    about = ((about - low) & 0xFFFFFFFF00000000u) | low;
    return about - (uint64_t)beats * NST_BEAT_TICKS;
}

void nst_port_clock_stop(void) {
    NST_TIMER0_CTRL = 0u;
    NST_WATCHDOG_CONTROL = 0u;
    NST_TIMER1_CTRL = 0u;
    NST_TIMER1_INTCLEAR = 1u;
    NST_DUAL_CONTROL = 0u;
    NST_DUAL_INTCLR = 1u;
    nst_uart_rx_release();
}
