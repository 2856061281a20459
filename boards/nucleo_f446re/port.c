/* port.c - NUCLEO-F446RE: STM32F446 at 180 MHz, console USART2 on PA2 and PA3, to the ST-LINK.
 *
 * The ST-LINK gives 8 MHz (UM1724, 6.7.1), of which the PLL makes 180 MHz with over-drive; without that clock the
 * internal one of 16 MHz does.  Registers: RM0390, chapters 3 (flash), 5 (PWR), 6 (RCC), 7 (GPIO); vectors: table 38.
 */
#include "cortex_m.h"
#include "stm32f4_clock.h"
#include "systick_clock.h"
#include "uart.h"

#define NST_GPIOA_MODER NST_REG32(0x40020000u)
#define NST_GPIOA_AFRL NST_REG32(0x40020020u)

#define NST_IRQ_COUNT 97u

typedef NST_VECTORS(NST_IRQ_COUNT) nst_vector_table;

extern const nst_vector_table nst_vectors;
NST_VECTORS_PLACE const nst_vector_table nst_vectors = {
    nst_handler_stack_top,
    NST_CORE_VECTORS_WITH(nst_systick_entry),
    {NST_UNUSED_32, NST_UNUSED_4, NST_UNUSED_2, nst_uart_rx_handler, NST_UNUSED_2, NST_UNUSED_8,
     NST_UNUSED_32, NST_UNUSED_16}};

void nst_port_start(void) {
    nst_stm32f4_clock_start();
    NST_RCC_AHB1ENR |= 1u << 0;  /* GPIOA */
    NST_RCC_APB1ENR |= 1u << 17; /* USART2 */
    (void)NST_RCC_APB1ENR;
    NST_GPIOA_AFRL = (NST_GPIOA_AFRL & ~0xFF00u) | 0x7700u;         /* PA2, PA3: AF7 */
    NST_GPIOA_MODER = (NST_GPIOA_MODER & ~(0xFu << 4)) | 0xAu << 4; /* alternate function */
    nst_uart_start();
}
