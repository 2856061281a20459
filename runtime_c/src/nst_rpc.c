/* nst_rpc.c - the serial server.  Frames are described in toolkit/measure/rpc/frame.py, messages in
 * toolkit/measure/rpc/messages.py; nst_rpc_messages.h has their layouts.
 *
 * Received bytes go through a COBS decoder into the buffer; replies are encoded on the fly from where
 * the data lies, so that no second buffer is needed.  A frame with a wrong CRC is dropped without an
 * answer: the host asks again.
 */
#include "nst_rpc.h"

#include <string.h>

#define NST_RPC_HEAD 4u /* kind, channel, sequence */
#define NST_RPC_CRC 4u
#define NST_RPC_RESIDUE 0x2144DF1Cu /* CRC-32 of anything that ends with its own CRC */

#if defined(__GNUC__)
#define NST_WEAK __attribute__((weak))
#else
#define NST_WEAK
#endif

/* ---- what a port may leave out ---- */

NST_WEAK int nst_port_beat(uint32_t beat_ms) {
    (void)beat_ms;
    return 0;
}

#if NST_RPC_LOAD
NST_WEAK void nst_port_code(const void *code, uint32_t bytes) {
    (void)code;
    (void)bytes;
}
#endif

/* ---- numbers, little-endian ---- */

static uint16_t nst_get16(const uint8_t *at) {
    return (uint16_t)((uint32_t)at[0] | ((uint32_t)at[1] << 8));
}

static uint32_t nst_get32(const uint8_t *at) {
    return (uint32_t)at[0] | ((uint32_t)at[1] << 8) | ((uint32_t)at[2] << 16) | ((uint32_t)at[3] << 24);
}

static void nst_set16(uint8_t *at, uint32_t value) {
    at[0] = (uint8_t)value;
    at[1] = (uint8_t)(value >> 8);
}

static void nst_set32(uint8_t *at, uint32_t value) {
    nst_set16(at, value);
    nst_set16(at + 2, value >> 16);
}

static void nst_set64(uint8_t *at, uint64_t value) {
    nst_set32(at, (uint32_t)value);
    nst_set32(at + 4, (uint32_t)(value >> 32));
}

static void nst_copy(uint8_t *to, const uint8_t *from, uint32_t bytes) {
    uint32_t i;
    for (i = 0u; i < bytes; i++) {
        to[i] = from[i];
    }
}

uint32_t nst_crc32(uint32_t crc, const uint8_t *data, uint32_t bytes) {
    /* Polynomial 0xEDB88320, four bits at a time: 64 bytes of table instead of 1 kB. */
    static const uint32_t table[16] = {
        0x00000000u, 0x1DB71064u, 0x3B6E20C8u, 0x26D930ACu, 0x76DC4190u, 0x6B6B51F4u,
        0x4DB26158u, 0x5005713Cu, 0xEDB88320u, 0xF00F9344u, 0xD6D6A3E8u, 0xCB61B38Cu,
        0x9B64C2B0u, 0x86D3D2D4u, 0xA00AE278u, 0xBDBDF21Cu};
    uint32_t i;
    crc = ~crc;
    for (i = 0u; i < bytes; i++) {
        crc ^= data[i];
        crc = (crc >> 4) ^ table[crc & 15u];
        crc = (crc >> 4) ^ table[crc & 15u];
    }
    return ~crc;
}

/* ---- sender ---- */

static void nst_send_block(nst_rpc *rpc) {
    uint8_t i;
    nst_port_write((uint8_t)(rpc->block_bytes + 1u));
    for (i = 0u; i < rpc->block_bytes; i++) {
        nst_port_write(rpc->block[i]);
    }
    rpc->block_bytes = 0u;
}

static void nst_send_raw(nst_rpc *rpc, const uint8_t *data, uint32_t bytes) {
    uint32_t i;
    for (i = 0u; i < bytes; i++) {
        if (data[i] == 0u) {
            nst_send_block(rpc);
        } else {
            rpc->block[rpc->block_bytes++] = data[i];
            if (rpc->block_bytes == sizeof rpc->block) {
                nst_send_block(rpc);
            }
        }
    }
}

static void nst_send_data(nst_rpc *rpc, const uint8_t *data, uint32_t bytes) {
    rpc->crc = nst_crc32(rpc->crc, data, bytes);
    nst_send_raw(rpc, data, bytes);
}

static void nst_send_begin(nst_rpc *rpc, uint32_t kind) {
    uint8_t head[NST_RPC_HEAD];
    head[0] = (uint8_t)kind;
    head[1] = rpc->reply_channel;
    nst_set16(head + 2, rpc->reply_sequence);
    rpc->crc = 0u;
    rpc->block_bytes = 0u;
    nst_port_write(0u);
    nst_send_data(rpc, head, NST_RPC_HEAD);
}

static void nst_send_end(nst_rpc *rpc) {
    uint8_t crc[NST_RPC_CRC];
    nst_set32(crc, rpc->crc);
    nst_send_raw(rpc, crc, NST_RPC_CRC);
    nst_send_block(rpc);
    nst_port_write(0u);
}

static void nst_send(nst_rpc *rpc, uint32_t kind, const uint8_t *payload, uint32_t bytes) {
    nst_send_begin(rpc, kind);
    nst_send_data(rpc, payload, bytes);
    nst_send_end(rpc);
}

/* ---- commands: each fills `reply`, whose status is OK already, and returns its length ---- */

typedef uint32_t nst_command(nst_rpc *rpc, const uint8_t *request, uint32_t bytes, uint8_t *reply);

static uint32_t nst_refuse(uint8_t *reply, uint32_t status) {
    reply[0] = (uint8_t)status;
    return NST_RPC_STATUS_REPLY_BYTES;
}

/* Return the memory that a request names: region and offset at `where`, then `count` bytes.  Null with a
 * refusal in `reply` when there is none.  A write ends what is loaded there. */
static uint8_t *nst_range(nst_rpc *rpc, const uint8_t *where, uint32_t count, int write, uint8_t *reply) {
    const uint32_t region = where[0];
    const uint32_t offset = nst_get32(where + 1);
    const nst_rpc_region *const it = &rpc->config->regions[region];
    if (region >= rpc->config->region_count || (write != 0 && (it->flags & NST_RPC_REGION_WRITABLE) == 0u)) {
        (void)nst_refuse(reply, NST_RPC_STATUS_BAD_REGION);
        return NULL;
    }
    if (offset > it->bytes || count > it->bytes - offset) {
        (void)nst_refuse(reply, NST_RPC_STATUS_BAD_RANGE);
        return NULL;
    }
#if NST_RPC_LOAD
    if (write != 0 && count != 0u && region == rpc->loaded_region && offset < rpc->loaded_offset + rpc->loaded_bytes &&
        rpc->loaded_offset < offset + count) {
        rpc->loaded_bytes = 0u;
        rpc->model = rpc->config->model;
        rpc->run = rpc->config->run;
    }
#endif
    return it->base + offset;
}

static uint32_t nst_do_ping(nst_rpc *rpc, const uint8_t *request, uint32_t bytes, uint8_t *reply) {
    const uint32_t session = nst_get32(request + NST_RPC_PING_REQUEST_SESSION);
    (void)bytes;
    if (session != rpc->session) {
        const uint32_t next = (*rpc->config->kept + 1u) & 0xFFu;
        *rpc->config->kept = next == 0u ? 1u : next;
        rpc->channel = (uint8_t)*rpc->config->kept;
        rpc->session = session;
        rpc->sequence = rpc->reply_sequence;
        rpc->ran = 0u;
    }
    nst_set16(reply + NST_RPC_PING_REPLY_VERSION, NST_RPC_VERSION);
    nst_set32(reply + NST_RPC_PING_REPLY_SESSION, session);
    reply[NST_RPC_PING_REPLY_CHANNEL] = rpc->channel;
    return NST_RPC_PING_REPLY_BYTES;
}

static uint32_t nst_do_info(nst_rpc *rpc, const uint8_t *request, uint32_t bytes, uint8_t *reply) {
    const nst_rpc_config *const config = rpc->config;
    const nst_model *const model = rpc->model;
    uint64_t start;
    uint64_t stop;
    (void)request;
    (void)bytes;
    nst_port_clock_start(0u);
    start = nst_port_clock();
    stop = nst_port_clock();
    nst_port_clock_stop();
    nst_set16(reply + NST_RPC_INFO_REPLY_VERSION, NST_RPC_VERSION);
    nst_set32(reply + NST_RPC_INFO_REPLY_MODEL_DIGEST, model->digest);
    nst_set32(reply + NST_RPC_INFO_REPLY_ARENA_BYTES, model->arena_bytes);
    nst_set32(reply + NST_RPC_INFO_REPLY_NODE_COUNT, model->node_count);
    nst_set16(reply + NST_RPC_INFO_REPLY_INPUT_COUNT, model->input_count);
    nst_set16(reply + NST_RPC_INFO_REPLY_OUTPUT_COUNT, model->output_count);
    nst_set16(reply + NST_RPC_INFO_REPLY_BUFFER_BYTES, config->buffer_bytes);
    reply[NST_RPC_INFO_REPLY_REGION_COUNT] = config->region_count;
    reply[NST_RPC_INFO_REPLY_UNIT] = config->unit;
    nst_set32(reply + NST_RPC_INFO_REPLY_CLOCK_HZ, config->clock_hz);
    nst_set32(reply + NST_RPC_INFO_REPLY_EMPTY_START, (uint32_t)start);
    nst_set32(reply + NST_RPC_INFO_REPLY_EMPTY_STOP, (uint32_t)stop);
    reply[NST_RPC_INFO_REPLY_FEATURES] =
        (uint8_t)((NST_RPC_LOAD ? NST_RPC_FEATURE_LOAD : 0u) | (nst_port_beat(0u) ? NST_RPC_FEATURE_BEAT : 0u));
    return NST_RPC_INFO_REPLY_BYTES;
}

static uint32_t nst_do_tensor(nst_rpc *rpc, const uint8_t *request, uint32_t bytes, uint8_t *reply) {
    const nst_model *const model = rpc->model;
    const int output = request[NST_RPC_TENSOR_REQUEST_OUTPUT] != 0u;
    const uint32_t index = nst_get16(request + NST_RPC_TENSOR_REQUEST_INDEX);
    const nst_tensor *it;
    (void)bytes;
    if (index >= (output ? model->output_count : model->input_count)) {
        return nst_refuse(reply, NST_RPC_STATUS_BAD_INDEX);
    }
    it = (output ? model->outputs : model->inputs) + index;
    nst_set32(reply + NST_RPC_TENSOR_REPLY_OFFSET, it->offset);
    nst_set32(reply + NST_RPC_TENSOR_REPLY_NBYTES, it->bytes);
    nst_set16(reply + NST_RPC_TENSOR_REPLY_DTYPE, it->dtype);
    return NST_RPC_TENSOR_REPLY_BYTES;
}

static uint32_t nst_do_write(nst_rpc *rpc, const uint8_t *request, uint32_t bytes, uint8_t *reply) {
    const uint32_t count = bytes - NST_RPC_WRITE_REQUEST_BYTES;
    const uint8_t *const data = request + NST_RPC_WRITE_REQUEST_DATA;
    uint8_t *const to = nst_range(rpc, request, count, 1, reply);
    if (to != NULL) {
        nst_copy(to, data, count);
    }
    return NST_RPC_STATUS_REPLY_BYTES;
}

static uint32_t nst_do_crc(nst_rpc *rpc, const uint8_t *request, uint32_t bytes, uint8_t *reply) {
    const uint32_t count = nst_get32(request + NST_RPC_CRC_REQUEST_COUNT);
    const uint8_t *const from = nst_range(rpc, request, count, 0, reply);
    (void)bytes;
    if (from == NULL) {
        return NST_RPC_STATUS_REPLY_BYTES;
    }
    nst_set32(reply + NST_RPC_CRC_REPLY_CRC, nst_crc32(0u, from, count));
    return NST_RPC_CRC_REPLY_BYTES;
}

/* READ sends its reply itself, straight from the region; returns 0 then. */
static uint32_t nst_do_read(nst_rpc *rpc, const uint8_t *request, uint32_t bytes, uint8_t *reply) {
    const uint32_t count = nst_get32(request + NST_RPC_READ_REQUEST_COUNT);
    const uint8_t *const from = nst_range(rpc, request, count, 0, reply);
    (void)bytes;
    if (from == NULL) {
        return NST_RPC_STATUS_REPLY_BYTES;
    }
    nst_send_begin(rpc, NST_RPC_CMD_READ | NST_RPC_REPLY);
    nst_send_data(rpc, reply, NST_RPC_READ_REPLY_BYTES);
    nst_send_data(rpc, from, count);
    nst_send_end(rpc);
    return 0u;
}

static void nst_keep_result(nst_rpc *rpc, uint32_t result, uint64_t start, uint64_t stop) {
    uint8_t *const kept = rpc->run_reply;
    nst_set32(kept + NST_RPC_RUN_REPLY_RESULT, result);
    nst_set32(kept + NST_RPC_RUN_REPLY_STACK_BYTES, rpc->stack_bytes);
    nst_set32(kept + NST_RPC_RUN_REPLY_NODE_EVENTS, rpc->node_events);
    nst_set32(kept + NST_RPC_RUN_REPLY_NODE, rpc->node);
    nst_set64(kept + NST_RPC_RUN_REPLY_START, start);
    nst_set64(kept + NST_RPC_RUN_REPLY_STOP, stop);
    rpc->ran = 1u;
}

/* Time a kernel, that of `rpc->node`; its event, the end of what would be the reply, goes out while the
 * clock's readings are not used. */
static void nst_on_node(void *user, uint32_t node, int after) {
    nst_rpc *const rpc = (nst_rpc *)user;
    const uint64_t now = nst_port_clock();
    (void)node;
    if (after == 0) {
        rpc->node_start = now;
    } else {
        rpc->node_events++;
        nst_keep_result(rpc, 0u, rpc->node_start, now);
        nst_send(rpc, NST_RPC_EVENT_NODE, rpc->run_reply + NST_RPC_RUN_REPLY_NODE, NST_RPC_NODE_EVENT_BYTES);
    }
}

/* Tell whether the result of RUN or CALL is there already; if not, forget the last one and say that this
 * one is at work. */
static int nst_has_run(nst_rpc *rpc) {
    if (rpc->ran != 0u && rpc->run_sequence == rpc->reply_sequence) {
        return 1;
    }
    rpc->ran = 0u;
    rpc->run_sequence = rpc->reply_sequence;
    rpc->node_events = 0u;
    rpc->stack_bytes = 0u;
    nst_send(rpc, NST_RPC_EVENT_ALIVE, NULL, 0u);
    nst_port_flush();
    return 0;
}

static uint32_t nst_do_run(nst_rpc *rpc, const uint8_t *request, uint32_t bytes, uint8_t *reply) {
    const uint8_t *const part = request + NST_RPC_RUN_REQUEST_PART;
    (void)reply;
    if (!nst_has_run(rpc)) {
        void *const arena = rpc->config->regions[NST_RPC_REGION_ARENA].base;
        nst_status (*const run)(void *) = rpc->run;
        uint64_t start = 0u;
        uint64_t stop;
        uint32_t result;
        (void)nst_port_beat(nst_get32(request + NST_RPC_RUN_REQUEST_BEAT_MS));
        nst_port_stack_paint();
        nst_port_clock_start(nst_get32(request + NST_RPC_RUN_REQUEST_LIMIT_MS));
        rpc->node = 0u;
        if (bytes == NST_RPC_RUN_REQUEST_BYTES + NST_RPC_RUN_PART_BYTES) {
            rpc->node = nst_get32(part + NST_RPC_RUN_PART_FIRST);
            do {
                result = (uint32_t)nst_step_hooked(rpc->model, arena, &rpc->node, nst_on_node, rpc);
            } while (result == (uint32_t)NST_OK && rpc->node < nst_get32(part + NST_RPC_RUN_PART_STOP));
        } else {
            start = nst_port_clock();
            result = (uint32_t)run(arena);
        }
        stop = nst_port_clock();
        nst_port_clock_stop();
        rpc->stack_bytes = nst_port_stack_used();
        nst_keep_result(rpc, result, start, stop);
    }
    nst_send(rpc, NST_RPC_CMD_RUN | NST_RPC_REPLY, rpc->run_reply, NST_RPC_RUN_REPLY_BYTES);
    return 0u;
}

static uint32_t nst_do_stats(nst_rpc *rpc, const uint8_t *request, uint32_t bytes, uint8_t *reply) {
    (void)request;
    (void)bytes;
    nst_set32(reply + NST_RPC_STATS_REPLY_STACK_BYTES, rpc->stack_bytes);
    nst_set32(reply + NST_RPC_STATS_REPLY_FRAMES, rpc->frames);
    nst_set32(reply + NST_RPC_STATS_REPLY_BAD_FRAMES, rpc->bad_frames);
    nst_set32(reply + NST_RPC_STATS_REPLY_LOST_BYTES, nst_port_lost_bytes());
    return NST_RPC_STATS_REPLY_BYTES;
}

static uint32_t nst_do_fault(nst_rpc *rpc, const uint8_t *request, uint32_t bytes, uint8_t *reply) {
    const nst_fault *const fault = nst_port_fault();
    (void)rpc;
    (void)bytes;
    reply[NST_RPC_FAULT_REPLY_KIND] = (uint8_t)fault->kind;
    nst_set32(reply + NST_RPC_FAULT_REPLY_PC, fault->pc);
    nst_set32(reply + NST_RPC_FAULT_REPLY_LR, fault->lr);
    nst_set32(reply + NST_RPC_FAULT_REPLY_SP, fault->sp);
    nst_set32(reply + NST_RPC_FAULT_REPLY_CAUSE, fault->cause);
    nst_set32(reply + NST_RPC_FAULT_REPLY_ADDRESS, fault->address);
    if (request[NST_RPC_FAULT_REQUEST_CLEAR] != 0u) {
        nst_port_fault_clear();
    }
    return NST_RPC_FAULT_REPLY_BYTES;
}

static uint32_t nst_do_reset(nst_rpc *rpc, const uint8_t *request, uint32_t bytes, uint8_t *reply) {
    (void)request;
    (void)bytes;
    nst_send(rpc, NST_RPC_CMD_RESET | NST_RPC_REPLY, reply, NST_RPC_STATUS_REPLY_BYTES);
    nst_port_flush();
    nst_port_reset();
    return 0u;
}

/* ---- loading and calling code ---- */

#if NST_RPC_LOAD

static uint32_t nst_do_region(nst_rpc *rpc, const uint8_t *request, uint32_t bytes, uint8_t *reply) {
    const uint32_t index = request[NST_RPC_REGION_REQUEST_REGION];
    const nst_rpc_region *const it = &rpc->config->regions[index];
    (void)bytes;
    if (index >= rpc->config->region_count) {
        return nst_refuse(reply, NST_RPC_STATUS_BAD_REGION);
    }
    nst_set32(reply + NST_RPC_REGION_REPLY_ADDRESS, (uint32_t)(uintptr_t)it->base);
    nst_set32(reply + NST_RPC_REGION_REPLY_NBYTES, it->bytes);
    reply[NST_RPC_REGION_REPLY_FLAGS] = it->flags;
    return NST_RPC_REGION_REPLY_BYTES;
}

static uint32_t nst_do_load(nst_rpc *rpc, const uint8_t *request, uint32_t bytes, uint8_t *reply) {
    const uint32_t region = request[NST_RPC_LOAD_REQUEST_REGION];
    const uint32_t offset = nst_get32(request + NST_RPC_LOAD_REQUEST_OFFSET);
    const uint32_t count = nst_get32(request + NST_RPC_LOAD_REQUEST_COUNT);
    const uint32_t model = nst_get32(request + NST_RPC_LOAD_REQUEST_MODEL);
    const uint32_t run = nst_get32(request + NST_RPC_LOAD_REQUEST_RUN);
    uint8_t *const code = nst_range(rpc, request, count, 1, reply);
    (void)bytes;
    if (code == NULL) {
        return NST_RPC_STATUS_REPLY_BYTES;
    }
    if ((rpc->config->regions[region].flags & NST_RPC_REGION_EXECUTABLE) == 0u) {
        return nst_refuse(reply, NST_RPC_STATUS_BAD_REGION);
    }
    rpc->model = rpc->config->model;
    rpc->run = rpc->config->run;
    rpc->loaded_bytes = 0u;
    if (nst_crc32(0u, code, count) != nst_get32(request + NST_RPC_LOAD_REQUEST_CRC)) {
        return nst_refuse(reply, NST_RPC_STATUS_BAD_CRC);
    }
    nst_port_code(code, count);
    if (model != NST_RPC_NO_MODEL) {
        const uintptr_t base = (uintptr_t)rpc->config->regions[region].base;
        const nst_model *const it = (const nst_model *)(base + model);
        if (model - offset > count || count - (model - offset) < sizeof *it || run - offset >= count ||
            (model & 3u) != 0u) {
            return nst_refuse(reply, NST_RPC_STATUS_BAD_RANGE);
        }
        if (it->arena_bytes > rpc->config->regions[NST_RPC_REGION_ARENA].bytes) {
            return nst_refuse(reply, NST_RPC_STATUS_BAD_RANGE);
        }
        rpc->model = it;
        rpc->run = (nst_status(*)(void *))(base + run);
    }
    rpc->loaded_region = (uint8_t)region;
    rpc->loaded_offset = offset;
    rpc->loaded_bytes = count;
    return NST_RPC_STATUS_REPLY_BYTES;
}

static uint32_t nst_do_call(nst_rpc *rpc, const uint8_t *request, uint32_t bytes, uint8_t *reply) {
    const uint32_t entry = nst_get32(request + NST_RPC_CALL_REQUEST_ENTRY);
    void *const argument = nst_range(rpc, request + NST_RPC_CALL_REQUEST_ARGUMENT_REGION, 0u, 0, reply);
    (void)bytes;
    if (argument == NULL) {
        return NST_RPC_STATUS_REPLY_BYTES;
    }
    if (entry - rpc->loaded_offset >= rpc->loaded_bytes) {
        return nst_refuse(reply, NST_RPC_STATUS_NOT_LOADED);
    }
    if (!nst_has_run(rpc)) {
        nst_loaded *const function =
            (nst_loaded *)((uintptr_t)rpc->config->regions[rpc->loaded_region].base + entry);
        uint64_t start;
        uint64_t stop;
        uint32_t result;
        (void)nst_port_beat(nst_get32(request + NST_RPC_CALL_REQUEST_BEAT_MS));
        nst_port_stack_paint();
        nst_port_clock_start(nst_get32(request + NST_RPC_CALL_REQUEST_LIMIT_MS));
        start = nst_port_clock();
        result = function(argument, nst_port_clock);
        stop = nst_port_clock();
        nst_port_clock_stop();
        rpc->stack_bytes = nst_port_stack_used();
        nst_keep_result(rpc, result, start, stop);
    }
    nst_send(rpc, NST_RPC_CMD_CALL | NST_RPC_REPLY, rpc->run_reply, NST_RPC_RUN_REPLY_BYTES);
    return 0u;
}

/* Word `index` of a seed: the last steps of MurmurHash3 (A. Appleby, public domain) of a counter, so that
 * any part of a pattern can be made apart. */
static uint32_t nst_word(uint32_t seed, uint32_t index) {
    uint32_t it = seed + index * 0x9E3779B9u;
    it = (it ^ (it >> 16)) * 0x85EBCA6Bu;
    it = (it ^ (it >> 13)) * 0xC2B2AE35u;
    return it ^ (it >> 16);
}

static uint32_t nst_do_fill(nst_rpc *rpc, const uint8_t *request, uint32_t bytes, uint8_t *reply) {
    const uint32_t count = nst_get32(request + NST_RPC_FILL_REQUEST_COUNT);
    const uint32_t kind = request[NST_RPC_FILL_REQUEST_KIND];
    const uint32_t seed = nst_get32(request + NST_RPC_FILL_REQUEST_SEED);
    const uint32_t first = nst_get32(request + NST_RPC_FILL_REQUEST_FIRST);
    const uint32_t low = nst_get32(request + NST_RPC_FILL_REQUEST_LOW);
    const uint32_t span = nst_get32(request + NST_RPC_FILL_REQUEST_SPAN);
    const uint32_t size = kind < NST_RPC_FILL_FLOAT32 ? kind : 4u;
    uint8_t *to;
    uint32_t i;
    uint32_t b;
    (void)bytes;
    if (kind == 0u || kind == 3u || kind > NST_RPC_FILL_FLOAT32_POSITIVE) {
        return nst_refuse(reply, NST_RPC_STATUS_BAD_KIND);
    }
    to = nst_range(rpc, request, count > UINT32_MAX / 4u ? UINT32_MAX : count * size, 1, reply);
    if (to == NULL) {
        return NST_RPC_STATUS_REPLY_BYTES;
    }
    for (i = 0u; i < count; i++) {
        uint32_t word = nst_word(seed, first + i);
        if (kind >= NST_RPC_FILL_FLOAT32) {
            /* The sum of four bytes is nearly normal; below it an odd number of 14 bits, so that none is
             * zero and sums of products are rounded.  All is exact: 24 bits. */
            int32_t sum = (int32_t)((word & 0xFFu) + ((word >> 8) & 0xFFu) + ((word >> 16) & 0xFFu) + (word >> 24));
            union {
                float value;
                uint32_t bits;
            } it;
            sum = (sum - 510) * 16384 + (int32_t)(((word >> 5) & 0x3FFFu) | 1u);
            if (kind == NST_RPC_FILL_FLOAT32_POSITIVE && sum < 0) {
                sum = -sum;
            }
            it.value = (float)sum * 4.76837158203125e-7f; /* 2^-21 */
            word = it.bits;
        } else {
            word = low + (span == 0u ? word : word % span);
        }
        for (b = 0u; b < size; b++) {
            *to++ = (uint8_t)word;
            word >>= 8;
        }
    }
    return NST_RPC_STATUS_REPLY_BYTES;
}

static uint32_t nst_do_permute(nst_rpc *rpc, const uint8_t *request, uint32_t bytes, uint8_t *reply) {
    const uint8_t *const loops = request + NST_RPC_PERMUTE_REQUEST_LOOPS;
    const uint32_t loop_bytes = bytes - NST_RPC_PERMUTE_REQUEST_BYTES;
    const uint32_t size = request[NST_RPC_PERMUTE_REQUEST_ELEMENT_BYTES];
    uint32_t turns[NST_RPC_PERMUTE_RANK] = {0u};
    uint64_t to_bytes = size;
    uint64_t from_bytes = size;
    uint64_t copied = size;
    uint8_t *to;
    const uint8_t *from;
    uint32_t at;
    uint32_t b;
    if (size == 0u || loop_bytes > 12u * NST_RPC_PERMUTE_RANK || loop_bytes % 12u != 0u) {
        return nst_refuse(reply, NST_RPC_STATUS_BAD_KIND);
    }
    for (at = 0u; at < loop_bytes; at += 12u) {
        const uint32_t more = nst_get32(loops + at) - 1u;
        to_bytes += (uint64_t)more * nst_get32(loops + at + 4);
        from_bytes += (uint64_t)more * nst_get32(loops + at + 8);
        copied *= (uint64_t)more + 1u;
        if (more == UINT32_MAX || to_bytes > UINT32_MAX || from_bytes > UINT32_MAX || copied > UINT32_MAX) {
            return nst_refuse(reply, NST_RPC_STATUS_BAD_RANGE);
        }
    }
    if (copied > to_bytes) { /* no place is written twice, so it ends soon */
        return nst_refuse(reply, NST_RPC_STATUS_BAD_RANGE);
    }
    from = nst_range(rpc, request + NST_RPC_PERMUTE_REQUEST_SOURCE_REGION, (uint32_t)from_bytes, 0, reply);
    to = nst_range(rpc, request, (uint32_t)to_bytes, 1, reply);
    if (from == NULL || to == NULL) {
        return NST_RPC_STATUS_REPLY_BYTES;
    }
    if ((uintptr_t)from < (uintptr_t)to + (uint32_t)to_bytes && (uintptr_t)to < (uintptr_t)from + (uint32_t)from_bytes) {
        return nst_refuse(reply, NST_RPC_STATUS_BAD_RANGE);
    }
    do {
        for (b = 0u; b < size; b++) {
            to[b] = from[b];
        }
        for (at = loop_bytes; at != 0u; at -= 12u) { /* the innermost loop that goes on */
            const uint8_t *const loop = loops + at - 12u;
            const uint32_t turn = turns[at / 12u - 1u] + 1u;
            to += nst_get32(loop + 4);
            from += nst_get32(loop + 8);
            if (turn < nst_get32(loop)) {
                turns[at / 12u - 1u] = turn;
                break;
            }
            turns[at / 12u - 1u] = 0u;
            to -= turn * nst_get32(loop + 4);
            from -= turn * nst_get32(loop + 8);
        }
    } while (at != 0u);
    return NST_RPC_STATUS_REPLY_BYTES;
}

#endif /* NST_RPC_LOAD */

/* ---- dispatch ---- */

typedef struct nst_command_row {
    uint8_t kind;
    uint8_t bytes; /* of the request's fixed fields */
    uint8_t tail;  /* more bytes may follow */
    nst_command *command;
} nst_command_row;

#define NST_ROW(name, tail, function) {NST_RPC_CMD_##name, NST_RPC_##name##_REQUEST_BYTES, tail, function}

static const nst_command_row nst_commands[] = {
    NST_ROW(WRITE, 1u, nst_do_write),
    NST_ROW(READ, 0u, nst_do_read),
    NST_ROW(PING, 0u, nst_do_ping),
    NST_ROW(INFO, 0u, nst_do_info),
    NST_ROW(TENSOR, 0u, nst_do_tensor),
    NST_ROW(CRC, 0u, nst_do_crc),
    NST_ROW(RUN, 1u, nst_do_run),
    NST_ROW(STATS, 0u, nst_do_stats),
    NST_ROW(FAULT, 0u, nst_do_fault),
    NST_ROW(RESET, 0u, nst_do_reset),
#if NST_RPC_LOAD
    NST_ROW(REGION, 0u, nst_do_region),
    NST_ROW(LOAD, 0u, nst_do_load),
    NST_ROW(CALL, 0u, nst_do_call),
    NST_ROW(FILL, 0u, nst_do_fill),
    NST_ROW(PERMUTE, 1u, nst_do_permute),
#endif
};

/* Carry out the frame in the buffer and answer it. */
static void nst_handle(nst_rpc *rpc) {
    const uint8_t *const frame = rpc->config->buffer;
    const uint32_t kind = frame[0];
    const uint16_t sequence = nst_get16(frame + 2);
    const uint32_t bytes = rpc->length - NST_RPC_HEAD - NST_RPC_CRC;
    uint8_t reply[NST_RPC_INFO_REPLY_BYTES]; /* the longest */
    uint32_t reply_bytes;
    uint32_t i;

    reply[0] = NST_RPC_STATUS_OK;
    rpc->reply_channel = frame[1];
    rpc->reply_sequence = sequence;
    if (kind != NST_RPC_CMD_PING) {
        if (rpc->session == 0u || frame[1] != rpc->channel) {
            nst_send(rpc, kind | NST_RPC_REPLY, reply, nst_refuse(reply, NST_RPC_STATUS_BAD_SESSION));
            return;
        }
        /* A request older than the last one is a copy that was under way for long: its answer is not
         * waited for, and carrying out a WRITE now would be wrong. */
        if ((((uint32_t)sequence - (uint32_t)rpc->sequence) & 0x8000u) != 0u) {
            return;
        }
        rpc->sequence = sequence;
    }
    reply_bytes = nst_refuse(reply, NST_RPC_STATUS_BAD_COMMAND);
    for (i = 0u; i < sizeof nst_commands / sizeof nst_commands[0]; i++) {
        const nst_command_row *const row = &nst_commands[i];
        if (row->kind == kind) {
            if (bytes == row->bytes || (bytes > row->bytes && row->tail != 0u)) {
                reply[0] = NST_RPC_STATUS_OK;
                reply_bytes = row->command(rpc, frame + NST_RPC_HEAD, bytes, reply);
            } else {
                reply_bytes = nst_refuse(reply, NST_RPC_STATUS_BAD_LENGTH);
            }
            break;
        }
    }
    if (reply_bytes != 0u) {
        nst_send(rpc, kind | NST_RPC_REPLY, reply, reply_bytes);
    }
}

/* ---- receiver ---- */

static void nst_keep(nst_rpc *rpc, uint8_t byte) {
    if (rpc->length < rpc->config->buffer_bytes) {
        rpc->config->buffer[rpc->length++] = byte;
        rpc->frame_crc = nst_crc32(rpc->frame_crc, &byte, 1u);
    } else {
        rpc->bad = 1u;
    }
}

void nst_rpc_feed(nst_rpc *rpc, uint8_t byte) {
    if (byte != 0u) {
        if (rpc->left != 0u) {
            rpc->left--;
            nst_keep(rpc, byte);
        } else {
            if (rpc->code != 0u && rpc->code != 0xFFu) {
                nst_keep(rpc, 0u);
            }
            rpc->code = byte;
            rpc->left = (uint8_t)(byte - 1u);
        }
        return;
    }
    if (rpc->code != 0u) {
        if (rpc->bad == 0u && rpc->left == 0u && rpc->length >= NST_RPC_HEAD + NST_RPC_CRC &&
            rpc->frame_crc == NST_RPC_RESIDUE) {
            rpc->frames++;
            nst_handle(rpc);
        } else {
            rpc->bad_frames++;
        }
    }
    rpc->length = 0u;
    rpc->frame_crc = 0u;
    rpc->left = 0u;
    rpc->code = 0u;
    rpc->bad = 0u;
}

void nst_rpc_init(nst_rpc *rpc, const nst_rpc_config *config) {
    uint8_t event[NST_RPC_BOOT_EVENT_BYTES];
    (void)memset(rpc, 0, sizeof *rpc);
    rpc->config = config;
    rpc->model = config->model;
    rpc->run = config->run;
    *config->kept = *config->kept + 1u;
    nst_set16(event + NST_RPC_BOOT_EVENT_VERSION, NST_RPC_VERSION);
    event[NST_RPC_BOOT_EVENT_KIND] = (uint8_t)nst_port_fault()->kind;
    nst_send(rpc, NST_RPC_EVENT_BOOT, event, NST_RPC_BOOT_EVENT_BYTES);
}

void nst_rpc_serve(nst_rpc *rpc) {
    for (;;) {
        const int byte = nst_port_read();
        if (byte < 0) {
            nst_port_wait();
        } else {
            nst_rpc_feed(rpc, (uint8_t)byte);
        }
    }
}
