/* port.c - NUCLEO-L4R5ZI: STM32L4R5 at 120 MHz, console LPUART1 on PG7 and PG8, to the ST-LINK.
 *
 * The board has no other fast clock than the internal one of 16 MHz (UM2179, 7.8.1), of which the PLL makes 120 MHz in
 * range 1 with boost.  Port G lies on a supply of its own, which must be declared valid.  Registers: RM0432, chapters
 * 3 (flash), 5 (PWR), 6 (RCC), 8 (GPIO); vectors: table 76.
 */
#include "cortex_m.h"
#include "systick_clock.h"
#include "uart.h"

#define NST_RCC 0x40021000u
#define NST_RCC_CR NST_REG32(NST_RCC + 0x00u)
#define NST_RCC_CFGR NST_REG32(NST_RCC + 0x08u)
#define NST_RCC_PLLCFGR NST_REG32(NST_RCC + 0x0Cu)
#define NST_RCC_AHB2ENR NST_REG32(NST_RCC + 0x4Cu)
#define NST_RCC_APB1ENR1 NST_REG32(NST_RCC + 0x58u)
#define NST_RCC_APB1ENR2 NST_REG32(NST_RCC + 0x5Cu)
#define NST_RCC_CCIPR NST_REG32(NST_RCC + 0x88u)
#define NST_PWR 0x40007000u
#define NST_PWR_CR2 NST_REG32(NST_PWR + 0x04u)
#define NST_PWR_CR5 NST_REG32(NST_PWR + 0x80u)
#define NST_FLASH_ACR NST_REG32(0x40022000u)
#define NST_GPIOG_MODER NST_REG32(0x48001800u)
#define NST_GPIOG_AFRL NST_REG32(0x48001820u)
#define NST_GPIOG_AFRH NST_REG32(0x48001824u)

#define NST_HSI_HZ 16000000u
#define NST_PLL_IN_HZ 4000000u /* what the PLL multiplies: 2.66 to 16 MHz */
#define NST_PLL_N (2u * NST_CLOCK_HZ / NST_PLL_IN_HZ)

#if NST_CLOCK_HZ > 120000000u || NST_PLL_N < 8u || NST_PLL_N > 127u || 2u * NST_CLOCK_HZ % NST_PLL_IN_HZ != 0u
#error "the PLL cannot make this clock: its oscillator runs at up to 344 MHz"
#endif
#if NST_FLASH_WAITS * 20000000u + 20000000u < NST_CLOCK_HZ
#error "the flash needs a wait state for each 20 MHz beyond the first (RM0432, table 12)"
#endif
#if NST_UART_CLOCK_HZ != NST_HSI_HZ
#error "LPUART1 counts the internal clock of 16 MHz"
#endif

#define NST_IRQ_COUNT 95u

typedef NST_VECTORS(NST_IRQ_COUNT) nst_vector_table;

extern const nst_vector_table nst_vectors;
NST_VECTORS_PLACE const nst_vector_table nst_vectors = {
    nst_handler_stack_top,
    NST_CORE_VECTORS_WITH(nst_systick_entry),
    {NST_UNUSED_64, NST_UNUSED_4, NST_UNUSED_2, nst_uart_rx_handler, NST_UNUSED_16, NST_UNUSED_8}};

static void nst_clocks_start(void) {
    NST_PWR_CR5 &= ~(1u << 8); /* R1MODE: boost */
    NST_RCC_CR |= 1u << 8;     /* HSI16 */
    nst_await(NST_RCC + 0x00u, 1u << 10, 1u << 10);
    NST_RCC_PLLCFGR = (1u << 24) | (NST_PLL_N << 8) | ((NST_HSI_HZ / NST_PLL_IN_HZ - 1u) << 4) | 2u; /* R = 2, of HSI16 */
    NST_RCC_CR |= 1u << 24;
    NST_FLASH_ACR = (7u << 8) | NST_FLASH_WAITS; /* both caches of the flash, prefetch */
    if (nst_await(NST_RCC + 0x00u, 1u << 25, 1u << 25)) {
        uint32_t i;
        NST_RCC_CFGR = (8u << 4) | 3u; /* the PLL, halved for a microsecond (RM0432, 6.2.9) */
        nst_await(NST_RCC + 0x08u, 3u << 2, 3u << 2);
        for (i = 0u; i < 200u; i++) {
            __asm__ volatile("nop");
        }
        NST_RCC_CFGR = 3u;
    }
}

void nst_port_start(void) {
    NST_RCC_APB1ENR1 |= 1u << 28; /* PWR */
    (void)NST_RCC_APB1ENR1;
    nst_clocks_start();
    NST_PWR_CR2 |= 1u << 9;       /* IOSV: VDDIO2, of port G, is there */
    NST_RCC_AHB2ENR |= 1u << 6;   /* GPIOG */
    NST_RCC_CCIPR = (NST_RCC_CCIPR & ~(3u << 10)) | 2u << 10; /* LPUART1 counts HSI16 */
    NST_RCC_APB1ENR2 |= 1u << 0;  /* LPUART1 */
    (void)NST_RCC_APB1ENR2;
    NST_GPIOG_AFRL = (NST_GPIOG_AFRL & ~(0xFu << 28)) | 8u << 28;     /* PG7: AF8 */
    NST_GPIOG_AFRH = (NST_GPIOG_AFRH & ~0xFu) | 8u;                   /* PG8: AF8 */
    NST_GPIOG_MODER = (NST_GPIOG_MODER & ~(0xFu << 14)) | 0xAu << 14; /* alternate function */
    nst_uart_start();
}
