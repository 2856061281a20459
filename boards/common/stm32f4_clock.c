/* stm32f4_clock.c - see stm32f4_clock.h. */
#include "stm32f4_clock.h"

#define NST_RCC 0x40023800u
#define NST_RCC_CR NST_REG32(NST_RCC + 0x00u)
#define NST_RCC_PLLCFGR NST_REG32(NST_RCC + 0x04u)
#define NST_RCC_CFGR NST_REG32(NST_RCC + 0x08u)
#define NST_PWR 0x40007000u
#define NST_PWR_CR NST_REG32(NST_PWR + 0x00u)
#define NST_FLASH_ACR NST_REG32(0x40023C00u)

#define NST_HSI_HZ 16000000u
#define NST_PLL_IN_HZ 2000000u /* what the PLL multiplies: 1 to 2 MHz */
#define NST_PLL_N (2u * NST_CLOCK_HZ / NST_PLL_IN_HZ)

#if NST_CLOCK_HZ > NST_CLOCK_MOST_HZ || NST_PLL_N < 50u || NST_PLL_N > 216u || 2u * NST_CLOCK_HZ % NST_PLL_IN_HZ != 0u
#error "the PLL cannot make this clock: its oscillator runs at 100 to 432 MHz"
#endif
#if NST_FLASH_WAITS * 30000000u + 30000000u < NST_CLOCK_HZ
#error "the flash needs a wait state for each 30 MHz beyond the first (RM0390 and RM0385, table 5)"
#endif
#if NST_UART_CLOCK_HZ * 4u != NST_CLOCK_HZ || NST_UART_CLOCK_HZ > NST_APB1_MOST_HZ
#error "APB1, whose clock the console's USART counts, runs at a quarter of the core's"
#endif

void nst_stm32f4_clock_start(void) {
    uint32_t source = 1u << 22, input = NST_HSE_HZ;
    NST_RCC_APB1ENR |= 1u << 28; /* PWR */
    (void)NST_RCC_APB1ENR;
    NST_PWR_CR |= 3u << 14; /* VOS: scale 1 */
    NST_RCC_CR |= 1u << 18; /* HSE is a clock, not a crystal */
    NST_RCC_CR |= 1u << 16;
    if (!nst_await(NST_RCC + 0x00u, 1u << 17, 1u << 17)) {
        source = 0u;
        input = NST_HSI_HZ;
    }
    NST_RCC_PLLCFGR = (2u << 28) | (9u << 24) | source | (NST_PLL_N << 6) | (input / NST_PLL_IN_HZ); /* P = 2 */
    NST_RCC_CR |= 1u << 24;
    NST_PWR_CR |= 1u << 16; /* over-drive, then switch to it */
    nst_await(NST_PWR + 0x04u, 1u << 16, 1u << 16);
    NST_PWR_CR |= 1u << 17;
    nst_await(NST_PWR + 0x04u, 1u << 17, 1u << 17);
    NST_FLASH_ACR = NST_FLASH_CACHES | NST_FLASH_WAITS;
    NST_RCC_CFGR = (4u << 13) | (5u << 10); /* APB2: a half, APB1: a quarter */
    if (nst_await(NST_RCC + 0x00u, 1u << 25, 1u << 25)) {
        NST_RCC_CFGR |= 2u; /* the PLL */
        nst_await(NST_RCC + 0x08u, 3u << 2, 2u << 2);
    }
}
