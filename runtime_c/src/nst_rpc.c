/* nst_rpc.c - the serial server.  Frames are described in toolkit/measure/rpc/frame.py, messages in
 * toolkit/measure/rpc/messages.py; nst_rpc_messages.h has their layouts.
 *
 * Received bytes go through a COBS decoder into the buffer; replies are encoded on the fly from where
 * the data lies, so that no second buffer is needed.  A frame with a wrong CRC is dropped without an
 * answer: the host asks again.
 */
#include "nst_rpc.h"

#define NST_RPC_HEAD 3u /* kind, sequence */
#define NST_RPC_CRC 4u

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

static void nst_send_begin(nst_rpc *rpc, uint32_t kind, uint16_t sequence) {
    uint8_t head[NST_RPC_HEAD];
    head[0] = (uint8_t)kind;
    nst_set16(head + 1, sequence);
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

static void nst_send(nst_rpc *rpc, uint32_t kind, uint16_t sequence, const uint8_t *payload, uint32_t bytes) {
    nst_send_begin(rpc, kind, sequence);
    nst_send_data(rpc, payload, bytes);
    nst_send_end(rpc);
}

/* ---- commands: each fills `reply` and returns its length ---- */

static uint32_t nst_refuse(uint8_t *reply, uint32_t status) {
    reply[0] = (uint8_t)status;
    return NST_RPC_STATUS_REPLY_BYTES;
}

/* Return the range a request names (region, offset, count in that order), or null with a refusal in
 * `reply`. */
static uint8_t *nst_range(const nst_rpc *rpc, uint8_t *reply, uint32_t region, uint32_t offset,
                          uint32_t count, int write) {
    const nst_rpc_region *it;
    if (region >= rpc->config->region_count) {
        (void)nst_refuse(reply, NST_RPC_STATUS_BAD_REGION);
        return NULL;
    }
    it = &rpc->config->regions[region];
    if (write != 0 && it->writable == 0u) {
        (void)nst_refuse(reply, NST_RPC_STATUS_BAD_REGION);
        return NULL;
    }
    if (offset > it->bytes || count > it->bytes - offset) {
        (void)nst_refuse(reply, NST_RPC_STATUS_BAD_RANGE);
        return NULL;
    }
    return it->base + offset;
}

static uint32_t nst_do_info(const nst_rpc *rpc, uint8_t *reply) {
    const nst_rpc_config *const config = rpc->config;
    const nst_model *const model = config->model;
    uint64_t start;
    uint64_t stop;
    nst_port_clock_start(0u);
    start = nst_port_clock();
    stop = nst_port_clock();
    nst_port_clock_stop();
    reply[NST_RPC_INFO_REPLY_STATUS] = NST_RPC_STATUS_OK;
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
    return NST_RPC_INFO_REPLY_BYTES;
}

static uint32_t nst_do_tensor(const nst_rpc *rpc, const uint8_t *request, uint8_t *reply) {
    const nst_model *const model = rpc->config->model;
    const int output = request[NST_RPC_TENSOR_REQUEST_OUTPUT] != 0u;
    const uint32_t index = nst_get16(request + NST_RPC_TENSOR_REQUEST_INDEX);
    const nst_tensor *it;
    if (index >= (output ? model->output_count : model->input_count)) {
        return nst_refuse(reply, NST_RPC_STATUS_BAD_INDEX);
    }
    it = (output ? model->outputs : model->inputs) + index;
    reply[NST_RPC_TENSOR_REPLY_STATUS] = NST_RPC_STATUS_OK;
    nst_set32(reply + NST_RPC_TENSOR_REPLY_OFFSET, it->offset);
    nst_set32(reply + NST_RPC_TENSOR_REPLY_NBYTES, it->bytes);
    nst_set16(reply + NST_RPC_TENSOR_REPLY_DTYPE, it->dtype);
    return NST_RPC_TENSOR_REPLY_BYTES;
}

static uint32_t nst_do_write(const nst_rpc *rpc, const uint8_t *request, uint32_t bytes, uint8_t *reply) {
    const uint32_t count = bytes - NST_RPC_WRITE_REQUEST_BYTES;
    const uint8_t *const data = request + NST_RPC_WRITE_REQUEST_DATA;
    uint8_t *const to = nst_range(rpc, reply, request[NST_RPC_WRITE_REQUEST_REGION],
                                  nst_get32(request + NST_RPC_WRITE_REQUEST_OFFSET), count, 1);
    uint32_t i;
    if (to != NULL) {
        for (i = 0u; i < count; i++) {
            to[i] = data[i];
        }
        reply[0] = NST_RPC_STATUS_OK;
    }
    return NST_RPC_STATUS_REPLY_BYTES;
}

static uint32_t nst_do_crc(const nst_rpc *rpc, const uint8_t *request, uint8_t *reply) {
    const uint32_t count = nst_get32(request + NST_RPC_CRC_REQUEST_COUNT);
    const uint8_t *const from = nst_range(rpc, reply, request[NST_RPC_CRC_REQUEST_REGION],
                                          nst_get32(request + NST_RPC_CRC_REQUEST_OFFSET), count, 0);
    if (from == NULL) {
        return NST_RPC_STATUS_REPLY_BYTES;
    }
    reply[NST_RPC_CRC_REPLY_STATUS] = NST_RPC_STATUS_OK;
    nst_set32(reply + NST_RPC_CRC_REPLY_CRC, nst_crc32(0u, from, count));
    return NST_RPC_CRC_REPLY_BYTES;
}

/* READ sends its reply itself, straight from the region; returns 0 then. */
static uint32_t nst_do_read(nst_rpc *rpc, uint16_t sequence, const uint8_t *request, uint8_t *reply) {
    const uint32_t count = nst_get32(request + NST_RPC_READ_REQUEST_COUNT);
    const uint8_t *const from = nst_range(rpc, reply, request[NST_RPC_READ_REQUEST_REGION],
                                          nst_get32(request + NST_RPC_READ_REQUEST_OFFSET), count, 0);
    if (from == NULL) {
        return NST_RPC_STATUS_REPLY_BYTES;
    }
    reply[0] = NST_RPC_STATUS_OK;
    nst_send_begin(rpc, NST_RPC_CMD_READ | NST_RPC_REPLY, sequence);
    nst_send_data(rpc, reply, NST_RPC_READ_REPLY_BYTES);
    nst_send_data(rpc, from, count);
    nst_send_end(rpc);
    return 0u;
}

/* Time a kernel; its event goes out while the clock's readings are not used. */
static void nst_on_node(void *user, uint32_t node, int after) {
    nst_rpc *const rpc = (nst_rpc *)user;
    if (after == 0) {
        rpc->node_start = nst_port_clock();
    } else {
        const uint64_t stop = nst_port_clock();
        uint8_t event[NST_RPC_NODE_EVENT_BYTES];
        nst_set32(event + NST_RPC_NODE_EVENT_NODE, node);
        nst_set64(event + NST_RPC_NODE_EVENT_START, rpc->node_start);
        nst_set64(event + NST_RPC_NODE_EVENT_STOP, stop);
        nst_send(rpc, NST_RPC_EVENT_NODE, rpc->run_sequence, event, NST_RPC_NODE_EVENT_BYTES);
        rpc->node_events++;
    }
}

static uint32_t nst_do_run(nst_rpc *rpc, uint16_t sequence, const uint8_t *request, uint8_t *reply) {
    const nst_rpc_config *const config = rpc->config;
    const uint32_t limit_ms = nst_get32(request + NST_RPC_RUN_REQUEST_LIMIT_MS);
    const int profile = (request[NST_RPC_RUN_REQUEST_FLAGS] & NST_RPC_RUN_PROFILE) != 0u;
    void *const arena = config->regions[NST_RPC_REGION_ARENA].base;
    uint32_t stack_bytes = 0u;
    nst_status status;
    uint64_t start;
    uint64_t stop;
    uint32_t i;

    if (nst_get32(request + NST_RPC_RUN_REQUEST_SESSION) != rpc->session) {
        return nst_refuse(reply, NST_RPC_STATUS_BAD_SESSION);
    }
    if (profile && config->model->node_count == 0u) {
        return nst_refuse(reply, NST_RPC_STATUS_NO_NODES);
    }
    if (rpc->ran == 0u || rpc->run_sequence != sequence) {
        rpc->ran = 0u;
        rpc->run_sequence = sequence;
        rpc->node_events = 0u;
        nst_send(rpc, NST_RPC_EVENT_ALIVE, sequence, NULL, 0u);
        nst_port_flush();
        if (profile) {
            nst_port_clock_start(limit_ms);
            start = nst_port_clock();
            status = nst_run_hooked(config->model, arena, nst_on_node, rpc);
            stop = nst_port_clock();
            nst_port_clock_stop();
        } else {
            nst_port_stack_paint();
            nst_port_clock_start(limit_ms);
            start = nst_port_clock();
            status = config->run(arena);
            stop = nst_port_clock();
            nst_port_clock_stop();
            stack_bytes = nst_port_stack_used();
            rpc->stack_bytes = stack_bytes;
        }
        rpc->run_reply[NST_RPC_RUN_REPLY_STATUS] = NST_RPC_STATUS_OK;
        rpc->run_reply[NST_RPC_RUN_REPLY_MODEL_STATUS] = (uint8_t)status;
        nst_set64(rpc->run_reply + NST_RPC_RUN_REPLY_START, start);
        nst_set64(rpc->run_reply + NST_RPC_RUN_REPLY_STOP, stop);
        nst_set32(rpc->run_reply + NST_RPC_RUN_REPLY_STACK_BYTES, stack_bytes);
        nst_set32(rpc->run_reply + NST_RPC_RUN_REPLY_NODE_EVENTS, rpc->node_events);
        rpc->ran = 1u;
    }
    for (i = 0u; i < NST_RPC_RUN_REPLY_BYTES; i++) {
        reply[i] = rpc->run_reply[i];
    }
    return NST_RPC_RUN_REPLY_BYTES;
}

static uint32_t nst_do_stats(const nst_rpc *rpc, uint8_t *reply) {
    reply[NST_RPC_STATS_REPLY_STATUS] = NST_RPC_STATUS_OK;
    nst_set32(reply + NST_RPC_STATS_REPLY_STACK_BYTES, rpc->stack_bytes);
    nst_set32(reply + NST_RPC_STATS_REPLY_FRAMES, rpc->frames);
    nst_set32(reply + NST_RPC_STATS_REPLY_BAD_FRAMES, rpc->bad_frames);
    nst_set32(reply + NST_RPC_STATS_REPLY_LOST_BYTES, nst_port_lost_bytes());
    return NST_RPC_STATS_REPLY_BYTES;
}

static uint32_t nst_do_fault(const uint8_t *request, uint8_t *reply) {
    const nst_fault *const fault = nst_port_fault();
    reply[NST_RPC_FAULT_REPLY_STATUS] = NST_RPC_STATUS_OK;
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

static uint32_t nst_do_ping(nst_rpc *rpc, uint16_t sequence, const uint8_t *request, uint8_t *reply) {
    const uint32_t session = nst_get32(request + NST_RPC_PING_REQUEST_SESSION);
    if (session != rpc->session) {
        rpc->session = session;
        rpc->sequence = sequence;
        rpc->ran = 0u;
    }
    reply[NST_RPC_PING_REPLY_STATUS] = NST_RPC_STATUS_OK;
    nst_set16(reply + NST_RPC_PING_REPLY_VERSION, NST_RPC_VERSION);
    nst_set32(reply + NST_RPC_PING_REPLY_SESSION, session);
    return NST_RPC_PING_REPLY_BYTES;
}

/* Bytes of a request's fixed fields; UINT32_MAX for an unknown command. */
static uint32_t nst_request_bytes(uint32_t kind) {
    switch (kind) {
    case NST_RPC_CMD_PING:
        return NST_RPC_PING_REQUEST_BYTES;
    case NST_RPC_CMD_INFO:
        return NST_RPC_INFO_REQUEST_BYTES;
    case NST_RPC_CMD_TENSOR:
        return NST_RPC_TENSOR_REQUEST_BYTES;
    case NST_RPC_CMD_WRITE:
        return NST_RPC_WRITE_REQUEST_BYTES;
    case NST_RPC_CMD_READ:
        return NST_RPC_READ_REQUEST_BYTES;
    case NST_RPC_CMD_CRC:
        return NST_RPC_CRC_REQUEST_BYTES;
    case NST_RPC_CMD_RUN:
        return NST_RPC_RUN_REQUEST_BYTES;
    case NST_RPC_CMD_STATS:
        return NST_RPC_STATS_REQUEST_BYTES;
    case NST_RPC_CMD_FAULT:
        return NST_RPC_FAULT_REQUEST_BYTES;
    case NST_RPC_CMD_RESET:
        return NST_RPC_RESET_REQUEST_BYTES;
    default:
        return UINT32_MAX;
    }
}

/* Carry out the frame in the buffer and answer it. */
static void nst_handle(nst_rpc *rpc) {
    const uint8_t *const frame = rpc->config->buffer;
    const uint32_t kind = frame[0];
    const uint16_t sequence = nst_get16(frame + 1);
    const uint8_t *const request = frame + NST_RPC_HEAD;
    const uint32_t bytes = rpc->length - NST_RPC_HEAD - NST_RPC_CRC;
    const uint32_t needed = nst_request_bytes(kind);
    uint8_t reply[NST_RPC_INFO_REPLY_BYTES]; /* the longest */
    uint32_t reply_bytes;
    int reset = 0;

    /* A request older than the last one is a copy that was under way for long: its answer is not
     * waited for, and carrying out a WRITE now would be wrong.  (Before the first PING all are taken,
     * so that a client whose board restarted hears of it.) */
    if (kind != NST_RPC_CMD_PING && rpc->session != 0u) {
        if (((uint32_t)sequence - (uint32_t)rpc->sequence) & 0x8000u) {
            return;
        }
        rpc->sequence = sequence;
    }
    if (needed == UINT32_MAX) {
        reply_bytes = nst_refuse(reply, NST_RPC_STATUS_BAD_COMMAND);
    } else if (bytes < needed || (bytes != needed && kind != NST_RPC_CMD_WRITE)) {
        reply_bytes = nst_refuse(reply, NST_RPC_STATUS_BAD_LENGTH);
    } else {
        switch (kind) {
        case NST_RPC_CMD_PING:
            reply_bytes = nst_do_ping(rpc, sequence, request, reply);
            break;
        case NST_RPC_CMD_INFO:
            reply_bytes = nst_do_info(rpc, reply);
            break;
        case NST_RPC_CMD_TENSOR:
            reply_bytes = nst_do_tensor(rpc, request, reply);
            break;
        case NST_RPC_CMD_WRITE:
            reply_bytes = nst_do_write(rpc, request, bytes, reply);
            break;
        case NST_RPC_CMD_READ:
            reply_bytes = nst_do_read(rpc, sequence, request, reply);
            break;
        case NST_RPC_CMD_CRC:
            reply_bytes = nst_do_crc(rpc, request, reply);
            break;
        case NST_RPC_CMD_RUN:
            reply_bytes = nst_do_run(rpc, sequence, request, reply);
            break;
        case NST_RPC_CMD_STATS:
            reply_bytes = nst_do_stats(rpc, reply);
            break;
        case NST_RPC_CMD_FAULT:
            reply_bytes = nst_do_fault(request, reply);
            break;
        default: /* NST_RPC_CMD_RESET */
            reply_bytes = nst_refuse(reply, NST_RPC_STATUS_OK);
            reset = 1;
            break;
        }
    }
    if (reply_bytes != 0u) {
        nst_send(rpc, kind | NST_RPC_REPLY, sequence, reply, reply_bytes);
    }
    if (reset) {
        nst_port_flush();
        nst_port_reset();
    }
}

/* ---- receiver ---- */

static void nst_keep(nst_rpc *rpc, uint8_t byte) {
    if (rpc->length < rpc->config->buffer_bytes) {
        rpc->config->buffer[rpc->length++] = byte;
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
        const uint8_t *const frame = rpc->config->buffer;
        const uint32_t bytes = rpc->length;
        if (rpc->bad == 0u && rpc->left == 0u && bytes >= NST_RPC_HEAD + NST_RPC_CRC &&
            nst_crc32(0u, frame, bytes - NST_RPC_CRC) == nst_get32(frame + bytes - NST_RPC_CRC)) {
            rpc->frames++;
            nst_handle(rpc);
        } else {
            rpc->bad_frames++;
        }
    }
    rpc->length = 0u;
    rpc->left = 0u;
    rpc->code = 0u;
    rpc->bad = 0u;
}

void nst_rpc_init(nst_rpc *rpc, const nst_rpc_config *config) {
    uint8_t event[NST_RPC_BOOT_EVENT_BYTES];
    rpc->config = config;
    rpc->length = 0u;
    rpc->frames = 0u;
    rpc->bad_frames = 0u;
    rpc->left = 0u;
    rpc->code = 0u;
    rpc->bad = 0u;
    rpc->ran = 0u;
    rpc->session = 0u;
    rpc->sequence = 0u;
    rpc->run_sequence = 0u;
    rpc->stack_bytes = 0u;
    rpc->node_events = 0u;
    rpc->node_start = 0u;
    rpc->crc = 0u;
    rpc->block_bytes = 0u;
    nst_set16(event + NST_RPC_BOOT_EVENT_VERSION, NST_RPC_VERSION);
    event[NST_RPC_BOOT_EVENT_KIND] = (uint8_t)nst_port_fault()->kind;
    nst_send(rpc, NST_RPC_EVENT_BOOT, 0u, event, NST_RPC_BOOT_EVENT_BYTES);
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
