/* port.c - NUCLEO-H743ZI: STM32H743 at 400 MHz with both caches, console USART3 on PD8 and PD9, to the ST-LINK.
 *
 * 400 MHz is what every revision of the chip reaches, in voltage scale 1.  The ST-LINK gives 8 MHz (UM2407, 6.8.1);
 * without that clock the internal one of 64 MHz does.  Registers: RM0433, chapters 4 (flash), 6 (PWR), 8 (RCC),
 * 11 (GPIO); vectors: table 149; caches: PM0253, 4.5.
 */
#include "caches.h"
#include "cortex_m.h"
#include "systick_clock.h"
#include "uart.h"

#define NST_RCC 0x58024400u
#define NST_RCC_CR NST_REG32(NST_RCC + 0x00u)
#define NST_RCC_CFGR NST_REG32(NST_RCC + 0x10u)
#define NST_RCC_D1CFGR NST_REG32(NST_RCC + 0x18u)
#define NST_RCC_D2CFGR NST_REG32(NST_RCC + 0x1Cu)
#define NST_RCC_D3CFGR NST_REG32(NST_RCC + 0x20u)
#define NST_RCC_PLLCKSELR NST_REG32(NST_RCC + 0x28u)
#define NST_RCC_PLLCFGR NST_REG32(NST_RCC + 0x2Cu)
#define NST_RCC_PLL1DIVR NST_REG32(NST_RCC + 0x30u)
#define NST_RCC_AHB4ENR NST_REG32(NST_RCC + 0xE0u)
#define NST_RCC_APB1LENR NST_REG32(NST_RCC + 0xE8u)
#define NST_PWR 0x58024800u
#define NST_PWR_CR3 NST_REG32(NST_PWR + 0x0Cu)
#define NST_PWR_D3CR NST_REG32(NST_PWR + 0x18u)
#define NST_FLASH_ACR NST_REG32(0x52002000u)
#define NST_GPIOD_MODER NST_REG32(0x58020C00u)
#define NST_GPIOD_AFRH NST_REG32(0x58020C24u)

#define NST_HSI_HZ 64000000u
#define NST_PLL_IN_HZ 2000000u /* what the PLL multiplies */
#define NST_PLL_N (2u * NST_CLOCK_HZ / NST_PLL_IN_HZ)

#if NST_CLOCK_HZ > 400000000u || NST_PLL_N < 4u || NST_PLL_N > 512u || 2u * NST_CLOCK_HZ > 836000000u
#error "the PLL cannot make this clock: its oscillator runs at 192 to 836 MHz"
#endif
#if NST_FLASH_WAITS * 70000000u + 70000000u < NST_CLOCK_HZ / 2u
#error "the flash needs a wait state for each 70 MHz of AXI beyond the first (RM0433, table 17)"
#endif
#if NST_UART_CLOCK_HZ * 4u != NST_CLOCK_HZ || NST_UART_CLOCK_HZ > 100000000u
#error "APB1, whose clock USART3 counts, runs at a quarter of the core's, 100 MHz at most"
#endif

#define NST_IRQ_COUNT 150u

typedef NST_VECTORS(NST_IRQ_COUNT) nst_vector_table;

extern const nst_vector_table nst_vectors;
NST_VECTORS_PLACE const nst_vector_table nst_vectors = {
    nst_handler_stack_top,
    NST_CORE_VECTORS_WITH(nst_systick_entry),
    {NST_UNUSED_32, NST_UNUSED_4, NST_UNUSED_2, nst_fault_entry, nst_uart_rx_handler, NST_UNUSED_8,
     NST_UNUSED_64, NST_UNUSED_32, NST_UNUSED_4, NST_UNUSED_2}};

static void nst_clocks_start(void) {
    uint32_t source = 2u, input = NST_HSE_HZ;
    NST_PWR_CR3 = (NST_PWR_CR3 & ~7u) | 2u; /* LDOEN alone: the supply must be stated once (RM0433, 6.4.1) */
    nst_await(NST_PWR + 0x04u, 1u << 13, 1u << 13);
    NST_PWR_D3CR |= 3u << 14; /* VOS: scale 1 */
    nst_await(NST_PWR + 0x18u, 1u << 13, 1u << 13);
    NST_RCC_CR |= 1u << 18; /* HSE is a clock, not a crystal */
    NST_RCC_CR |= 1u << 16;
    if (!nst_await(NST_RCC + 0x00u, 1u << 17, 1u << 17)) {
        source = 0u;
        input = NST_HSI_HZ;
    }
    NST_RCC_PLLCKSELR = (input / NST_PLL_IN_HZ) << 4 | source; /* DIVM1 */
    NST_RCC_PLL1DIVR = (1u << 24) | (1u << 16) | (1u << 9) | (NST_PLL_N - 1u); /* R, Q, P = 2 */
    NST_RCC_PLLCFGR = (1u << 16) | (1u << 2); /* P goes out; input of 2 to 4 MHz, wide oscillator */
    NST_RCC_CR |= 1u << 24;
    NST_RCC_D1CFGR = (4u << 4) | 8u;         /* AXI and AHB: a half of the core's, APB3 a half of that */
    NST_RCC_D2CFGR = (4u << 8) | (4u << 4);  /* APB2 and APB1 */
    NST_RCC_D3CFGR = 4u << 4;                /* APB4 */
    NST_FLASH_ACR = (2u << 4) | NST_FLASH_WAITS; /* WRHIGHFREQ */
    nst_await(0x52002000u, 0xFu, NST_FLASH_WAITS);
    if (nst_await(NST_RCC + 0x00u, 1u << 25, 1u << 25)) {
        NST_RCC_CFGR = 3u; /* PLL1 */
        nst_await(NST_RCC + 0x10u, 7u << 3, 3u << 3);
    }
}

void nst_port_start(void) {
    nst_caches_start();
    nst_clocks_start();
    NST_RCC_AHB4ENR |= 1u << 3;   /* GPIOD */
    NST_RCC_APB1LENR |= 1u << 18; /* USART3 */
    (void)NST_RCC_APB1LENR;
    NST_GPIOD_AFRH = (NST_GPIOD_AFRH & ~0xFFu) | 0x77u;               /* PD8, PD9: AF7 */
    NST_GPIOD_MODER = (NST_GPIOD_MODER & ~(0xFu << 16)) | 0xAu << 16; /* alternate function */
    nst_uart_start();
}
