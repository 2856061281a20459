/* systick_clock.c - see systick_clock.h; Armv7-M Architecture Reference Manual, B3.3 and C1.8 (DWT).
 *
 * SysTick counts 24 bits down, so an interrupt counts its turns.  In QEMU its handler takes 125 instructions,
 * no more and no fewer, which at any whole number of MHz and a shift of 3 or more are a whole number of
 * ticks: taken off, they leave the reading as if there had been no interrupt.
 *
 * QEMU's timer rounds each turn down to nanoseconds.  The board chooses a turn that is little more than a
 * whole number of them: the error then stays below what Board.from_ticks evens out for 5 * 10^8
 * instructions and more.
 */
#include "systick_clock.h"

#include <stddef.h>

#include "cortex_m.h"
#include "uart.h"

#ifndef NST_SYSTICK_EXACT
#define NST_SYSTICK_EXACT 1
#endif
#ifndef NST_CYCCNT
#define NST_CYCCNT 0
#endif

#define NST_SYST_ENABLE 7u /* the core's clock, interrupt, run */
#define NST_ICSR_PENDSTSET (1u << 26)
#define NST_ICSR_PENDSTCLR (1u << 25)

typedef struct nst_turn_count {
    uint32_t turns;
    uint32_t limit;
    volatile uint32_t *beat; /* where a turn writes a zero: the console's register, or `nowhere` */
    uint32_t nowhere;
} nst_turn_count;

/* Named by nst_systick_entry. */
#ifdef __cplusplus
extern "C" {
#endif
extern volatile nst_turn_count nst_systick;
#ifdef __cplusplus
}
#endif
volatile nst_turn_count nst_systick = {0u, 0u, NULL, 0u};
static uint32_t nst_beats; /* wanted in the next run */

__attribute__((naked)) void nst_systick_entry(void) {
    __asm__ volatile(
        "ldr r0, =nst_systick\n"
        "ldr r1, [r0]\n"
        "adds r1, r1, #1\n"
        "str r1, [r0]\n"
        "ldr r2, [r0, #4]\n"
        "cmp r1, r2\n"
        "beq 1f\n"
        "ldr r3, [r0, #8]\n"
        "movs r2, #0\n"
        "str r2, [r3]\n"
#if NST_SYSTICK_EXACT
        ".rept 114\n"
        "nop\n"
        ".endr\n"
#endif
        "bx lr\n"
        "1: ldr r0, =nst_limit_entry\n"
        "bx r0\n");
}

#if NST_CYCCNT
#define NST_DEMCR NST_REG32(0xE000EDFCu)
#define NST_DWT_CTRL NST_REG32(0xE0001000u)
#define NST_DWT_CYCCNT NST_REG32(0xE0001004u)
#define NST_DWT_LAR NST_REG32(0xE0001FB0u)

static uint32_t nst_cycles_move;
static uint32_t nst_cycles_start;

/* Some parts have no counter of cycles, some need a debugger for it, and QEMU's stands still. */
static void nst_cycles_begin(void) {
    NST_DEMCR |= 1u << 24;     /* TRCENA */
    NST_DWT_LAR = 0xC5ACCE55u; /* the lock of Cortex-M7 */
    NST_DWT_CTRL |= 1u;
    nst_cycles_start = NST_DWT_CYCCNT;
    __asm__ volatile("nop\n nop\n nop\n nop" ::: "memory");
    nst_cycles_move = NST_DWT_CYCCNT != nst_cycles_start;
    nst_cycles_start = NST_DWT_CYCCNT;
}
#endif

/* A beat a turn: 0.1 to 0.8 s of the board's time. */
int nst_port_beat(uint32_t beat_ms) {
    nst_beats = beat_ms;
    return 1;
}

void nst_port_clock_start(uint32_t limit_ms) {
    const uint64_t ticks = (uint64_t)limit_ms * (NST_CLOCK_HZ / 1000u);
    uint64_t turns = ticks / NST_SYSTICK_TURN + 1u;
    if (turns > 0xFFFFFFFFu) {
        turns = 0xFFFFFFFFu;
    }
    nst_uart_rx_hold();
    NST_SYST_CSR = 0u;
    NST_SCB_ICSR = NST_ICSR_PENDSTCLR;
    nst_systick.turns = 0u;
    nst_systick.limit = limit_ms == 0u ? 0u : (uint32_t)turns;
    nst_systick.beat = nst_beats != 0u ? (volatile uint32_t *)nst_uart_send_register() : &nst_systick.nowhere;
    nst_beats = 0u;
    NST_SYST_RVR = NST_SYSTICK_TURN - 1u;
    NST_SYST_CVR = 0u;
    NST_SYST_CSR = NST_SYST_ENABLE;
#if NST_CYCCNT
    nst_cycles_begin();
#endif
}

/* Without a branch: the time it takes must not depend on what it reads.  The counter shows 0, then
 * NST_SYSTICK_TURN - 1 and down; a turn ends as it comes to 0, and if that was just now, its interrupt
 * waits. */
uint64_t nst_port_clock(void) {
    uint32_t value, waits, turns, low, before;
    __asm__ volatile("cpsid i" ::: "memory");
    value = NST_SYST_CVR;
    waits = NST_SCB_ICSR;
    turns = nst_systick.turns;
    __asm__ volatile("cpsie i" ::: "memory");
    low = (NST_SYSTICK_TURN - value) & (0u - ((value + 0x00FFFFFFu) >> 24)); /* 0 when value is 0 */
    waits = (waits / NST_ICSR_PENDSTSET) & 1u;
    before = (low - NST_SYSTICK_TURN / 2u) >> 31; /* 1 in the first half of a turn */
#if NST_CYCCNT
    if (nst_cycles_move != 0u) {
        /* SysTick tells the turns of the counter's 32 bits: both count the core's cycles. */
        const uint32_t cycles = NST_DWT_CYCCNT - nst_cycles_start;
        const uint64_t about =
            (uint64_t)(turns + (waits & before)) * NST_SYSTICK_TURN + low + 0x80000000u;
        return ((about - cycles) & 0xFFFFFFFF00000000u) | cycles;
    }
#endif
    return (uint64_t)(turns + (waits & before)) * NST_SYSTICK_TURN + low -
           (uint64_t)turns * NST_SYSTICK_ENTRY_TICKS;
}

void nst_port_clock_stop(void) {
    NST_SYST_CSR = 0u;
    NST_SCB_ICSR = NST_ICSR_PENDSTCLR;
    nst_uart_rx_release();
}
