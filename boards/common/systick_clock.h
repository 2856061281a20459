/* systick_clock.h - the clock of nst_port.h on SysTick: boards in QEMU that have no better timer, and silicon.
 *
 * The board puts nst_systick_entry into its vector table (NST_CORE_VECTORS_WITH) and defines
 * NST_SYSTICK_TURN, the ticks of a turn of the counter (2^24 at most; see systick_clock.c), and
 * NST_SYSTICK_ENTRY_TICKS, the ticks that 125 instructions take: 125 * 2^icount_shift ns.
 * On silicon NST_SYSTICK_EXACT is 0, and NST_CYCCNT 1 where the core may have the DWT's counter of cycles, which then
 * times, unless a start-up check finds that it stands still; the interrupt's cycles, some 40 in a turn of 2^24,
 * stay in what is counted.
 *
 * A time limit is a number of whole turns, so a run is stopped up to a turn late.  The interrupt's frame
 * (32 bytes, 104 with an FPU) counts as stack when a run takes longer than a turn.
 */
#ifndef NST_SYSTICK_CLOCK_H
#define NST_SYSTICK_CLOCK_H

#ifdef __cplusplus
extern "C" {
#endif

void nst_systick_entry(void);

#ifdef __cplusplus
}
#endif

#endif /* NST_SYSTICK_CLOCK_H */
