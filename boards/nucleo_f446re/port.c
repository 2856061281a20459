/* port.c - NUCLEO-F446RE: STM32F446 at 180 MHz, console USART2 on PA2 and PA3, to the ST-LINK.
 *
 * The ST-LINK gives 8 MHz (UM1724, 6.7.1), of which the PLL makes 180 MHz with over-drive; without that clock the
 * internal one of 16 MHz does.  Registers: RM0390, chapters 3 (flash), 5 (PWR), 6 (RCC), 7 (GPIO); vectors: table 38.
 */
#include "cortex_m.h"
#include "systick_clock.h"
#include "uart.h"

#define NST_RCC 0x40023800u
#define NST_RCC_CR NST_REG32(NST_RCC + 0x00u)
#define NST_RCC_PLLCFGR NST_REG32(NST_RCC + 0x04u)
#define NST_RCC_CFGR NST_REG32(NST_RCC + 0x08u)
#define NST_RCC_AHB1ENR NST_REG32(NST_RCC + 0x30u)
#define NST_RCC_APB1ENR NST_REG32(NST_RCC + 0x40u)
#define NST_PWR 0x40007000u
#define NST_PWR_CR NST_REG32(NST_PWR + 0x00u)
#define NST_FLASH_ACR NST_REG32(0x40023C00u)
#define NST_GPIOA_MODER NST_REG32(0x40020000u)
#define NST_GPIOA_AFRL NST_REG32(0x40020020u)

#define NST_HSI_HZ 16000000u
#define NST_PLL_IN_HZ 2000000u /* what the PLL multiplies: 1 to 2 MHz */
#define NST_PLL_N (2u * NST_CLOCK_HZ / NST_PLL_IN_HZ)

#if NST_CLOCK_HZ > 180000000u || NST_PLL_N < 50u || NST_PLL_N > 216u || 2u * NST_CLOCK_HZ % NST_PLL_IN_HZ != 0u
#error "the PLL cannot make this clock: its oscillator runs at 100 to 432 MHz"
#endif
#if NST_FLASH_WAITS * 30000000u + 30000000u < NST_CLOCK_HZ
#error "the flash needs a wait state for each 30 MHz beyond the first (RM0390, table 5)"
#endif
#if NST_UART_CLOCK_HZ * 4u != NST_CLOCK_HZ || NST_UART_CLOCK_HZ > 45000000u
#error "APB1, whose clock USART2 counts, runs at a quarter of the core's, 45 MHz at most"
#endif

#define NST_IRQ_COUNT 97u

typedef NST_VECTORS(NST_IRQ_COUNT) nst_vector_table;

extern const nst_vector_table nst_vectors;
NST_VECTORS_PLACE const nst_vector_table nst_vectors = {
    nst_handler_stack_top,
    NST_CORE_VECTORS_WITH(nst_systick_entry),
    {NST_UNUSED_32, NST_UNUSED_4, NST_UNUSED_2, nst_uart_rx_handler, NST_UNUSED_2, NST_UNUSED_8,
     NST_UNUSED_32, NST_UNUSED_16}};

static void nst_clocks_start(void) {
    uint32_t source = 1u << 22, input = NST_HSE_HZ;
    NST_RCC_APB1ENR |= 1u << 28; /* PWR */
    (void)NST_RCC_APB1ENR;
    NST_PWR_CR |= 3u << 14;      /* VOS: scale 1 */
    NST_RCC_CR |= 1u << 18;      /* HSE is a clock, not a crystal */
    NST_RCC_CR |= 1u << 16;
    if (!nst_await(NST_RCC + 0x00u, 1u << 17, 1u << 17)) {
        source = 0u;
        input = NST_HSI_HZ;
    }
    NST_RCC_PLLCFGR = (2u << 28) | (2u << 24) | source | (NST_PLL_N << 6) | (input / NST_PLL_IN_HZ); /* P = 2 */
    NST_RCC_CR |= 1u << 24;
    NST_PWR_CR |= 1u << 16; /* over-drive, then switch to it */
    nst_await(NST_PWR + 0x04u, 1u << 16, 1u << 16);
    NST_PWR_CR |= 1u << 17;
    nst_await(NST_PWR + 0x04u, 1u << 17, 1u << 17);
    NST_FLASH_ACR = (7u << 8) | NST_FLASH_WAITS; /* both caches of the flash, prefetch */
    NST_RCC_CFGR = (4u << 13) | (5u << 10);      /* APB2: a half, APB1: a quarter */
    if (nst_await(NST_RCC + 0x00u, 1u << 25, 1u << 25)) {
        NST_RCC_CFGR |= 2u; /* the PLL */
        nst_await(NST_RCC + 0x08u, 3u << 2, 2u << 2);
    }
}

void nst_port_start(void) {
    nst_clocks_start();
    NST_RCC_AHB1ENR |= 1u << 0;  /* GPIOA */
    NST_RCC_APB1ENR |= 1u << 17; /* USART2 */
    (void)NST_RCC_APB1ENR;
    NST_GPIOA_AFRL = (NST_GPIOA_AFRL & ~0xFF00u) | 0x7700u;         /* PA2, PA3: AF7 */
    NST_GPIOA_MODER = (NST_GPIOA_MODER & ~(0xFu << 4)) | 0xAu << 4; /* alternate function */
    nst_uart_start();
}
