/* port.c - STM32VLDISCOVERY (STM32F100), as QEMU models it.
 *
 * The console is USART1 on PA9 and PA10.  QEMU models neither clock tree nor pins: both stay as after reset
 * (HSI, 8 MHz) but for what USART1 needs.  SysTick runs at 24 MHz there whatever the program does, which
 * makes 1.536 ticks an instruction.  Addresses and numbers: RM0041, tables 1 and 50.
 */
#include "cortex_m.h"
#include "systick_clock.h"
#include "uart.h"

#define NST_RCC_APB2ENR NST_REG32(0x40021018u)
#define NST_GPIOA_CRH NST_REG32(0x40010804u)

#define NST_IRQ_COUNT 61u

typedef NST_VECTORS(NST_IRQ_COUNT) nst_vector_table;

extern const nst_vector_table nst_vectors;
NST_VECTORS_PLACE const nst_vector_table nst_vectors = {
    nst_handler_stack_top,
    NST_CORE_VECTORS_WITH(nst_systick_entry),
    {NST_UNUSED_16, NST_UNUSED_16, NST_UNUSED_4, nst_fault_entry, nst_uart_rx_handler, nst_fault_entry,
     nst_fault_entry, NST_UNUSED_16, NST_UNUSED_4, nst_fault_entry}};

void nst_port_start(void) {
    NST_RCC_APB2ENR |= (1u << 2) | (1u << 14);                   /* GPIOA, USART1 */
    NST_GPIOA_CRH = (NST_GPIOA_CRH & ~0xFF0u) | 0x4B0u; /* PA9: alternate push-pull, PA10: input */
    nst_uart_start();
}
