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

/* Return the register to which a byte is written to be sent. */
uintptr_t nst_uart_send_register(void);

/* Tell, and forget, that the receiver had no place for a byte or more. */
int nst_uart_overran(void);

/* Take what the receiver holds, whose interrupt may have passed while it was kept away.  uart.c has one that
 * does nothing, for drivers whose interrupt stays until its byte is taken. */
void nst_uart_resume(void);

/* ---- of uart.c ---- */

/* Keep the receive interrupt away while something is timed. */
void nst_uart_rx_hold(void);
void nst_uart_rx_release(void);

/* Keep a received byte, or count it as lost; for the handler alone.  While the ring is nearly full the
 * interrupt is kept away: a handler that takes several bytes stops then. */
void nst_uart_put(uint8_t byte);
int nst_uart_full(void);

#ifdef __cplusplus
}
#endif

#endif /* NST_UART_H */
