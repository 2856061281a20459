/* server_harness.c - the serial server in this process: a port whose bytes go to and come from buffers.
 *
 * The model: y[i] = x[i] + 1 for four bytes, then y is doubled in place; x is overwritten, as a
 * planned arena would.  `harness_start` starts it; `harness_feed` gives it bytes; `harness_take` takes
 * what it sent.  With HARNESS_FUZZ, `main` feeds it seeded frames and noise.
 */
#include <string.h>

#include "nst_rpc.h"

#define ARENA_BYTES 4096u
#define OUT_BYTES (1u << 20)

static uint32_t harness_runs;

static void k_increment(uint8_t *arena, const nst_operand *o, const void *const *consts) {
    uint32_t i;
    (void)consts;
    for (i = 0; i < 4u; i++) {
        arena[o[0] + i] = (uint8_t)(arena[o[1] + i] + 1u);
        arena[o[1] + i] = 0xEEu;
    }
}

static void k_double(uint8_t *arena, const nst_operand *o, const void *const *consts) {
    uint32_t i;
    (void)consts;
    for (i = 0; i < 4u; i++) {
        arena[o[0] + i] = (uint8_t)(arena[o[1] + i] * 2u);
    }
}

static const nst_operand operands[] = {8, 0, 8, 8};
static const nst_node nodes[] = {{k_increment, 0, 2, 1, NST_FLOW_CALL}, {k_double, 2, 2, 1, NST_FLOW_CALL}};
static const int32_t shape[] = {4};
static const nst_tensor inputs[] = {{0, 4, shape, 1, NST_UINT8}};
static const nst_tensor outputs[] = {{8, 4, shape, 1, NST_UINT8}};
static const nst_model model = {nodes, operands, NULL, inputs, outputs, 2, 4, 0, 1, 1, ARENA_BYTES, 0xCAFEF00Du};

static NST_ALIGNED(NST_ARENA_ALIGN) uint8_t arena[ARENA_BYTES];
static uint8_t rom[32] = "read only";
static uint8_t buffer[128];
static const nst_rpc_region regions[] = {{arena, ARENA_BYTES, 1}, {rom, sizeof rom, 0}};

static nst_status run(void *where) {
    harness_runs++;
    return nst_run(&model, where);
}

static const nst_rpc_config config = {&model, run, regions, buffer, 1000, sizeof buffer, 2, NST_RPC_UNIT_CYCLES};
static nst_rpc rpc;
static uint8_t out[OUT_BYTES];
static uint32_t out_bytes;
static uint64_t ticks;
static uint32_t resets;
static nst_fault fault;

/* ---- the port ---- */

void nst_port_start(void) {}
int nst_port_read(void) { return -1; }
void nst_port_wait(void) {}
void nst_port_write(uint8_t byte) {
    if (out_bytes < OUT_BYTES) {
        out[out_bytes++] = byte;
    }
}
void nst_port_flush(void) {}
uint32_t nst_port_lost_bytes(void) { return 5; }
void nst_port_clock_start(uint32_t limit_ms) { ticks = limit_ms == 0u ? 0x100000000u : limit_ms; }
uint64_t nst_port_clock(void) { return ticks += 10u; }
void nst_port_clock_stop(void) {}
void nst_port_stack_paint(void) {}
uint32_t nst_port_stack_used(void) { return 321; }
const nst_fault *nst_port_fault(void) { return &fault; }
void nst_port_fault_clear(void) { fault.kind = NST_RPC_FAULT_NONE; }
void nst_port_reset(void) {
    resets++;
    nst_rpc_init(&rpc, &config);
}

/* ---- what the test calls ---- */

void harness_start(uint32_t fault_kind);
void harness_feed(const uint8_t *data, uint32_t bytes);
uint32_t harness_take(uint8_t *to, uint32_t bytes);
uint32_t harness_count(int which);

void harness_start(uint32_t fault_kind) {
    const nst_fault it = {fault_kind, 0x1234u, 0x5678u, 0x20001000u, 0x8200u, 0x60000000u};
    fault = it;
    harness_runs = 0;
    resets = 0;
    out_bytes = 0;
    (void)memset(arena, 0, sizeof arena);
    nst_rpc_init(&rpc, &config);
}

void harness_feed(const uint8_t *data, uint32_t bytes) {
    uint32_t i;
    for (i = 0; i < bytes; i++) {
        nst_rpc_feed(&rpc, data[i]);
    }
}

uint32_t harness_take(uint8_t *to, uint32_t bytes) {
    const uint32_t count = out_bytes < bytes ? out_bytes : bytes;
    (void)memcpy(to, out, count);
    (void)memmove(out, out + count, out_bytes - count);
    out_bytes -= count;
    return count;
}

uint32_t harness_count(int which) { return which == 0 ? harness_runs : resets; }

#ifdef HARNESS_FUZZ
#include <stdio.h>
#include <stdlib.h>

static uint32_t state;
static uint32_t next_random(void) { /* xorshift32 */
    state ^= state << 13;
    state ^= state >> 17;
    state ^= state << 5;
    return state;
}

/* Feed `count` frames: random kinds, lengths and contents, with right CRCs for the most part, cut short,
 * flipped or joined now and then; then see that the server still answers. */
int main(int argc, char **argv) {
    static uint8_t frame[200];
    static uint8_t coded[256];
    const uint32_t count = argc > 2 ? (uint32_t)atoi(argv[2]) : 1000u;
    uint32_t n;
    state = argc > 1 ? (uint32_t)atoi(argv[1]) | 1u : 1u;
    harness_start(NST_RPC_FAULT_NONE);
    for (n = 0; n < count; n++) {
        uint32_t bytes = 3u + next_random() % 140u;
        uint32_t at = 1;
        uint32_t code_at = 0;
        uint32_t i;
        for (i = 0; i < bytes; i++) { /* small numbers, so that ranges are often almost right */
            frame[i] = (uint8_t)(next_random() % 3u ? next_random() % 20u : next_random());
        }
        frame[0] = (uint8_t)(next_random() % 12u);
        if (next_random() % 3u != 0u) { /* a sequence number that is taken */
            frame[1] = (uint8_t)rpc.sequence;
            frame[2] = (uint8_t)(rpc.sequence >> 8);
            if (frame[0] == NST_RPC_CMD_RUN) {
                bytes = 3u + NST_RPC_RUN_REQUEST_BYTES;
                (void)memcpy(frame + 3 + NST_RPC_RUN_REQUEST_SESSION, &rpc.session, 4);
            }
        }
        i = nst_crc32(0, frame, bytes);
        (void)memcpy(frame + bytes, &i, 4);
        for (i = 0; i < bytes + 4u; i++) {
            if (frame[i] == 0u) {
                coded[code_at] = (uint8_t)(at - code_at);
                code_at = at++;
            } else {
                coded[at++] = frame[i];
            }
        }
        coded[code_at] = (uint8_t)(at - code_at);
        if (frame[0] == NST_RPC_CMD_RUN) {
            rpc.ran = (uint8_t)(next_random() % 2u);
        }
        if (next_random() % 4u == 0u) {
            coded[next_random() % at] = (uint8_t)next_random();
        }
        if (next_random() % 8u == 0u) {
            at = next_random() % at;
        }
        harness_feed(coded, at);
        if (next_random() % 16u != 0u) {
            nst_rpc_feed(&rpc, 0);
        }
        out_bytes = 0;
    }
    (void)printf("%u runs in %u frames\n", (unsigned)harness_runs, (unsigned)count);
    return 0;
}
#endif
