/* port.c - NUCLEO-F746ZG: STM32F746 at 216 MHz with both caches, console USART3 on PD8 and PD9, to the ST-LINK.
 *
 * The ST-LINK gives 8 MHz (UM1974, 6.7.1), of which the PLL makes 216 MHz with over-drive; without that clock the
 * internal one of 16 MHz does.  Registers: RM0385, chapters 3 (flash), 4 (PWR), 5 (RCC), 6 (GPIO); vectors: table 46;
 * caches: PM0253, 4.5.
 */
#include "caches.h"
#include "cortex_m.h"
#include "stm32f4_clock.h"
#include "systick_clock.h"
#include "uart.h"

#define NST_GPIOD_MODER NST_REG32(0x40020C00u)
#define NST_GPIOD_AFRH NST_REG32(0x40020C24u)

#define NST_IRQ_COUNT 98u

typedef NST_VECTORS(NST_IRQ_COUNT) nst_vector_table;

extern const nst_vector_table nst_vectors;
NST_VECTORS_PLACE const nst_vector_table nst_vectors = {
    nst_handler_stack_top,
    NST_CORE_VECTORS_WITH(nst_systick_entry),
    {NST_UNUSED_32, NST_UNUSED_4, NST_UNUSED_2, nst_fault_entry, nst_uart_rx_handler, NST_UNUSED_8,
     NST_UNUSED_32, NST_UNUSED_16, NST_UNUSED_2}};

void nst_port_start(void) {
    nst_caches_start();
    nst_stm32f4_clock_start();
    NST_RCC_AHB1ENR |= 1u << 3;  /* GPIOD */
    NST_RCC_APB1ENR |= 1u << 18; /* USART3 */
    (void)NST_RCC_APB1ENR;
    NST_GPIOD_AFRH = (NST_GPIOD_AFRH & ~0xFFu) | 0x77u;               /* PD8, PD9: AF7 */
    NST_GPIOD_MODER = (NST_GPIOD_MODER & ~(0xFu << 16)) | 0xAu << 16; /* alternate function */
    nst_uart_start();
}
