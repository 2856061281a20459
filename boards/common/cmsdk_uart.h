/* cmsdk_uart.h - console on the UART of Arm's Cortex-M System Design Kit (DDI 0479, 4.3).
 *
 * The board defines NST_UART_BASE and NST_UART_RX_IRQ (in its board.toml) and puts nst_uart_rx_handler into its
 * vector table.  Implements nst_port_read, _wait, _write, _flush and _lost_bytes.
 */
#ifndef NST_CMSDK_UART_H
#define NST_CMSDK_UART_H

#ifdef __cplusplus
extern "C" {
#endif

void nst_uart_start(void);
void nst_uart_rx_handler(void);

/* Keep the receive interrupt away while something is timed. */
void nst_uart_rx_hold(void);
void nst_uart_rx_release(void);

#ifdef __cplusplus
}
#endif

#endif /* NST_CMSDK_UART_H */
