/* uart.h - what a board asks of its console's driver, and the receive ring that drivers share.
 *
 * A driver (cmsdk_uart.c, stm32_usart.c, nrf_uart.c) knows the registers; the board defines their address and
 * the number of the interrupt (in its board.toml) and puts nst_uart_rx_handler into its vector table.
 * Driver and uart.c together implement nst_port_read, _wait, _write, _flush and _lost_bytes.
 */
#ifndef NST_UART_H
#define NST_UART_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- of the driver ---- */

void nst_uart_start(void);
void nst_uart_rx_handler(void);

/* Tell, and forget, that the receiver had no place for a byte or more. */
int nst_uart_overran(void);

/* ---- of uart.c ---- */

/* Keep the receive interrupt away while something is timed. */
void nst_uart_rx_hold(void);
void nst_uart_rx_release(void);

/* Keep a received byte, or count it as lost; for the handler alone.  While the ring has room for no more
 * than the 32 bytes of a receiver, the interrupt is kept away. */
void nst_uart_put(uint8_t byte);

#ifdef __cplusplus
}
#endif

#endif /* NST_UART_H */
