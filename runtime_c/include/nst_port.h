/* nst_port.h - what a board supplies to the serial server: console, clock, stack, restart.
 *
 * The models and the executor need none of this; only nst_rpc.c does.  A board implements it in
 * boards/NAME/port.c, with what its core shares with others in boards/common.
 */
#ifndef NST_PORT_H
#define NST_PORT_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The firmware: what a board's start-up code calls, once memory is set up.  Does not return. */
void nst_main(void);

/* Set up clocks, console and timer.  Called once, first. */
void nst_port_start(void);

/* Console.  `read` returns the next byte from the host, or -1 when none waits; `wait` may sleep until
 * one may be there, or return at once; `write` blocks while the transmitter is full; `flush`
 * returns when all is sent.  `lost_bytes` counts received bytes that had no place. */
int nst_port_read(void);
void nst_port_wait(void);
void nst_port_write(uint8_t byte);
void nst_port_flush(void);
uint32_t nst_port_lost_bytes(void);

/* Clock.  `start` sets it to zero and keeps interrupts that would disturb it away until `stop`; when
 * `limit_ms` milliseconds of the board's time pass before `stop`, the board restarts with fault
 * NST_RPC_FAULT_LIMIT (0: no limit).  Between the two, `nst_port_clock` counts ticks, and takes the same time
 * at each call.  What a tick is worth stands in board.toml. */
void nst_port_clock_start(uint32_t limit_ms);
uint64_t nst_port_clock(void);
void nst_port_clock_stop(void);

/* Heartbeat.  From the next `clock_start` to its `stop` send a zero byte each `beat_ms` milliseconds of the
 * board's time, or less often (0: none).  Exact counts leave out what that takes.  Returns whether the board can;
 * nst_rpc.c has one that cannot. */
int nst_port_beat(uint32_t beat_ms);

/* Code.  Make what was written to memory what the core fetches: a matter of caches.  nst_rpc.c has one
 * that does nothing. */
void nst_port_code(const void *code, uint32_t bytes);

/* Stack.  `paint` fills the unused stack below its caller; `used` returns how many bytes below that
 * point were written since (0 when the board cannot tell). */
void nst_port_stack_paint(void);
uint32_t nst_port_stack_used(void);

/* Why the program ended before the last restart: memory that a restart keeps.  `kind` is one of
 * NST_RPC_FAULT_* (0: no fault); the rest are registers, 0 where a core has none. */
typedef struct nst_fault {
    uint32_t kind;
    uint32_t pc;
    uint32_t lr;
    uint32_t sp;
    uint32_t cause;   /* Cortex-M: CFSR; elsewhere its bits that say the same */
    uint32_t address; /* of the access that failed, else 0; Cortex-M: BFAR or MMFAR when valid */
} nst_fault;

const nst_fault *nst_port_fault(void);
void nst_port_fault_clear(void);

/* Restart the board.  Does not return. */
void nst_port_reset(void);

#ifdef __cplusplus
}
#endif

#endif /* NST_PORT_H */
