/* port.c - Netduino Plus 2 (STM32F405), as QEMU models it.
 *
 * The console is USART1 on PA9 and PA10.  QEMU models neither clock tree nor pins: both stay as after reset
 * (HSI, 16 MHz) but for what USART1 needs.  SysTick runs at 168 MHz there whatever the program does, which
 * makes 2.688 ticks an instruction.  Addresses and numbers: RM0090, tables 1 and 61.
 */
#include "cortex_m.h"
#include "systick_clock.h"
#include "uart.h"

#define NST_RCC_AHB1ENR NST_REG32(0x40023830u)
#define NST_RCC_APB2ENR NST_REG32(0x40023844u)
#define NST_GPIOA_MODER NST_REG32(0x40020000u)
#define NST_GPIOA_AFRH NST_REG32(0x40020024u)

#define NST_IRQ_COUNT 82u

typedef NST_VECTORS(NST_IRQ_COUNT) nst_vector_table;

extern const nst_vector_table nst_vectors;
NST_VECTORS_PLACE const nst_vector_table nst_vectors = {
    nst_handler_stack_top,
    NST_CORE_VECTORS_WITH(nst_systick_entry),
    {NST_UNUSED_16, NST_UNUSED_16, NST_UNUSED_4, nst_fault_entry, nst_uart_rx_handler, nst_fault_entry,
     nst_fault_entry, NST_UNUSED_8, NST_UNUSED_16, NST_UNUSED_16, nst_fault_entry, nst_fault_entry}};

void nst_port_start(void) {
    NST_RCC_AHB1ENR |= 1u << 0;                                       /* GPIOA */
    NST_RCC_APB2ENR |= 1u << 4;                                       /* USART1 */
    NST_GPIOA_AFRH = (NST_GPIOA_AFRH & ~0xFF0u) | 0x770u;             /* PA9, PA10: AF7 */
    NST_GPIOA_MODER = (NST_GPIOA_MODER & ~(0xFu << 18)) | 0xAu << 18; /* alternate function */
    nst_uart_start();
}
