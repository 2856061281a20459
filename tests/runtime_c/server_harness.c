/* server_harness.c - the serial server in this process: a port whose bytes go to and come from buffers.
 *
 * The model: y[i] = x[i] + 1 for four bytes, then y is doubled in place; x is overwritten, as a
 * planned arena would.  An x that begins with 0xFA crashes.  `harness_start` starts it; `harness_feed` gives it
 * bytes; `harness_take` takes what it sent.  All that a run of the server changes can be saved and put back.
 * With HARNESS_FUZZ, `main` feeds it seeded frames and noise; with HARNESS_LIBFUZZER, libFuzzer does.
 */
#define _DEFAULT_SOURCE
#include <setjmp.h>
#include <string.h>
#include <sys/mman.h>

#include "nst_rpc.h"

#define ARENA_BYTES 4096u
#define CODE_BYTES 65536u
#define OUT_BYTES (1u << 20)

static uint32_t harness_runs;
static jmp_buf harness_restart;
static uint32_t harness_started_by; /* the fault that ends what is at work */

static void k_increment(uint8_t *arena, const nst_operand *o, const void *const *consts) {
    uint32_t i;
    (void)consts;
    if (arena[o[1]] == 0xFAu) {
        harness_started_by = NST_RPC_FAULT_EXCEPTION;
        nst_port_reset();
    }
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
static __attribute__((aligned(4096))) uint8_t code[CODE_BYTES];
static uint8_t buffer[160];
static const nst_rpc_region regions[] = {
    {arena, ARENA_BYTES, NST_RPC_REGION_WRITABLE},
    {rom, sizeof rom, 0},
    {code, CODE_BYTES, NST_RPC_REGION_WRITABLE | NST_RPC_REGION_EXECUTABLE}};

static nst_status run(void *where) {
    harness_runs++;
    return nst_run(&model, where);
}

static uint32_t kept;
static const nst_rpc_config config = {&model, run, regions, buffer, &kept, 1000, sizeof buffer, 3, NST_RPC_UNIT_CYCLES};
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
int nst_port_beat(uint32_t beat_ms) {
    ticks = beat_ms;
    return 1;
}
void nst_port_reset(void) {
    resets++;
    longjmp(harness_restart, 1);
}

/* ---- what the test calls ---- */

void harness_start(uint32_t fault_kind);
void harness_power_up(uint32_t seed);
void harness_clear(void);
uint32_t harness_state(uint8_t *to);
void harness_set_state(const uint8_t *from);
void harness_view(uint32_t *to);
uint32_t harness_loaded(void);
void harness_feed(const uint8_t *data, uint32_t bytes);
uint32_t harness_take(uint8_t *to, uint32_t bytes);
uint32_t harness_count(int which);

void harness_start(uint32_t fault_kind) {
    const nst_fault it = {fault_kind, 0x1234u, 0x5678u, 0x20001000u, 0x8200u, 0x60000000u};
    fault = it;
    harness_runs = 0;
    resets = 0;
    out_bytes = 0;
    (void)mprotect(code, sizeof code, PROT_READ | PROT_WRITE | PROT_EXEC);
    (void)memset(arena, 0, sizeof arena);
    nst_rpc_init(&rpc, &config);
}

/* Empty the memory that takes code and bulk data, which a start leaves as it is. */
void harness_clear(void) { (void)memset(code, 0, sizeof code); }

/* Come up after the supply failed: memory holds something, and no fault is known. */
void harness_power_up(uint32_t seed) {
    uint32_t i;
    for (i = 0; i < sizeof arena; i++) {
        arena[i] = (uint8_t)((seed = seed * 1664525u + 1013904223u) >> 24);
    }
    for (i = 0; i < sizeof code; i += 7u) {
        code[i] = (uint8_t)((seed = seed * 1664525u + 1013904223u) >> 24);
    }
    kept = seed;
    fault.kind = NST_RPC_FAULT_NONE;
    nst_rpc_init(&rpc, &config);
}

void harness_feed(const uint8_t *data, uint32_t bytes) {
    static uint32_t i; /* static: a longjmp leaves it alone */
    for (i = 0; i < bytes; i++) {
        if (setjmp(harness_restart) != 0) {
            fault.kind = harness_started_by;
            harness_started_by = NST_RPC_FAULT_NONE;
            nst_rpc_init(&rpc, &config);
        } else {
            nst_rpc_feed(&rpc, data[i]);
        }
    }
}

/* Copy all state, or return how much it is; what the port has sent is no part of it. */
uint32_t harness_state(uint8_t *to) {
    if (to != NULL) {
        (void)memcpy(to, &rpc, sizeof rpc);
        (void)memcpy(to + sizeof rpc, arena, 64);
        (void)memcpy(to + sizeof rpc + 64, &kept, sizeof kept);
    }
    return (uint32_t)(sizeof rpc + 64u + sizeof kept);
}

void harness_set_state(const uint8_t *from) {
    (void)memcpy(&rpc, from, sizeof rpc);
    (void)memcpy(arena, from + sizeof rpc, 64);
    (void)memcpy(&kept, from + sizeof rpc + 64, sizeof kept);
}

/* Session, channel, newest sequence number, and the count of sessions and starts. */
void harness_view(uint32_t *to) {
    to[0] = rpc.session;
    to[1] = rpc.channel;
    to[2] = rpc.sequence;
    to[3] = kept;
}

uint32_t harness_loaded(void) { return rpc.loaded_bytes; }

uint32_t harness_take(uint8_t *to, uint32_t bytes) {
    const uint32_t count = out_bytes < bytes ? out_bytes : bytes;
    (void)memcpy(to, out, count);
    (void)memmove(out, out + count, out_bytes - count);
    out_bytes -= count;
    return count;
}

uint32_t harness_count(int which) { return which == 0 ? harness_runs : resets; }

#if defined(HARNESS_LIBFUZZER) || defined(HARNESS_FUZZ)
/* Encode a frame with what CRC it is to have by COBS, without the zero at its end; return the bytes of it. */
static uint32_t encode(const uint8_t *frame, uint32_t bytes, uint8_t *coded) {
    uint32_t code_at = 0;
    uint32_t at = 1;
    uint32_t i;
    for (i = 0; i < bytes; i++) {
        if (frame[i] == 0u) {
            coded[code_at] = (uint8_t)(at - code_at);
            code_at = at++;
        } else {
            coded[at++] = frame[i];
        }
    }
    coded[code_at] = (uint8_t)(at - code_at);
    return at;
}
#endif

#ifdef HARNESS_LIBFUZZER
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* Encode `bytes` bytes as a frame and feed it; where asked, its CRC is made right. */
static void feed_frame(uint8_t *frame, uint32_t bytes, int right) {
    static uint8_t coded[512];
    uint32_t at;
    if (right != 0) {
        at = nst_crc32(0, frame, bytes);
        (void)memcpy(frame + bytes, &at, 4);
        bytes += 4u;
    }
    at = encode(frame, bytes, coded);
    coded[at++] = 0u;
    harness_feed(coded, at);
}

/* The input is a row of requests: a byte of length, a byte of what is done to it, then the request. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    static uint8_t frame[256];
    size_t at = 0;
    harness_start(NST_RPC_FAULT_NONE);
    while (at + 2u <= bytes) {
        const size_t rest = bytes - at - 2u;
        const uint32_t length = data[at] % 180u < rest ? data[at] % 180u : (uint32_t)rest;
        const uint8_t how = data[at + 1u];
        (void)memcpy(frame, data + at + 2u, length);
        at += 2u + length;
        if ((how & 1u) != 0u) {
            harness_feed(frame, length); /* as it is */
            continue;
        }
        if ((how & 2u) == 0u && length >= 4u) { /* of the session */
            frame[1] = rpc.channel;
            frame[2] = (uint8_t)rpc.sequence;
            frame[3] = (uint8_t)(rpc.sequence >> 8);
        }
        if (length >= 4u && frame[0] == NST_RPC_CMD_CALL) {
            rpc.ran = 1u; /* what is loaded is no code of this computer */
            rpc.run_sequence = (uint16_t)(frame[2] | frame[3] << 8);
        }
        if (length >= 4u && frame[0] == NST_RPC_CMD_LOAD && length >= 25u) {
            (void)memset(frame + 21, 0xFF, 4); /* no model: its pointers would be the fuzzer's */
        }
        feed_frame(frame, length, (how & 4u) == 0u);
        out_bytes = 0;
    }
    return 0;
}
#endif

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
        uint32_t bytes = 4u + next_random() % 160u;
        uint32_t at = 1;
        uint32_t i;
        for (i = 0; i < bytes; i++) { /* small numbers, so that ranges are often almost right */
            frame[i] = (uint8_t)(next_random() % 3u ? next_random() % 20u : next_random());
        }
        frame[0] = (uint8_t)(rpc.session == 0u ? NST_RPC_CMD_PING : next_random() % 22u);
        if (next_random() % 3u != 0u) { /* a request that is taken */
            static const uint8_t sizes[22] = {
                0, NST_RPC_PING_REQUEST_BYTES, NST_RPC_INFO_REQUEST_BYTES, NST_RPC_TENSOR_REQUEST_BYTES,
                NST_RPC_WRITE_REQUEST_BYTES + 20, NST_RPC_READ_REQUEST_BYTES, NST_RPC_CRC_REQUEST_BYTES,
                NST_RPC_RUN_REQUEST_BYTES, 0, NST_RPC_FAULT_REQUEST_BYTES, 0, 0, 0, 0, 0, 0, NST_RPC_REGION_REQUEST_BYTES,
                NST_RPC_LOAD_REQUEST_BYTES, 200, NST_RPC_FILL_REQUEST_BYTES, NST_RPC_PERMUTE_REQUEST_BYTES + 24, 0};
            frame[1] = rpc.channel;
            frame[2] = (uint8_t)rpc.sequence;
            frame[3] = (uint8_t)(rpc.sequence >> 8);
            if (sizes[frame[0]] != 200u) { /* CALL: what lies there is no code of this computer */
                bytes = 4u + sizes[frame[0]];
            }
            if (frame[0] == NST_RPC_CMD_RUN && next_random() % 4u == 0u) { /* node by node */
                bytes += NST_RPC_RUN_PART_BYTES;
            }
            if (frame[0] == NST_RPC_CMD_LOAD) {
                (void)memset(frame + 4 + NST_RPC_LOAD_REQUEST_MODEL, 0xFF, 4);
            }
        }
        if (frame[0] == NST_RPC_CMD_CALL) {
            rpc.ran = 1u;
            rpc.run_sequence = (uint16_t)(frame[2] | frame[3] << 8);
        }
        i = nst_crc32(0, frame, bytes);
        (void)memcpy(frame + bytes, &i, 4);
        at = encode(frame, bytes + 4u, coded);
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
            harness_feed((const uint8_t *)"", 1);
        }
        out_bytes = 0;
    }
    (void)printf("%u runs in %u frames\n", (unsigned)harness_runs, (unsigned)count);
    return 0;
}
#endif
