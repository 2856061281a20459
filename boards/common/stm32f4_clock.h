/* stm32f4_clock.h - the clock tree that STM32 F4 and F7 have in common (RM0390 and RM0385, chapters 3 to 6). */
#ifndef NST_STM32F4_CLOCK_H
#define NST_STM32F4_CLOCK_H

#include "core.h"

#ifdef __cplusplus
extern "C" {
#endif

#define NST_RCC_AHB1ENR NST_REG32(0x40023830u)
#define NST_RCC_APB1ENR NST_REG32(0x40023840u)

/* Run the core at NST_CLOCK_HZ by PLL and over-drive, APB1 at a quarter of that, APB2 at half.
 *
 * The board defines NST_HSE_HZ, a clock from outside (without it the internal one of 16 MHz does), NST_CLOCK_MOST_HZ,
 * NST_APB1_MOST_HZ, NST_FLASH_WAITS and NST_FLASH_CACHES, the bits of FLASH_ACR that speed reading up. */
void nst_stm32f4_clock_start(void);

#ifdef __cplusplus
}
#endif

#endif /* NST_STM32F4_CLOCK_H */
