/* nst_rpc.h - the serial server: lets a host write inputs, run the model, time it and read outputs.
 *
 * One server serves one model over the port of nst_port.h.  With NST_RPC_LOAD it also takes code from the
 * host, functions or a whole model, and makes test data by itself.  It owns no memory: the caller gives it
 * the arena, a buffer for one received frame, and its state.  Nothing of it is needed in a product.
 */
#ifndef NST_RPC_H
#define NST_RPC_H

#include "nst.h"
#include "nst_port.h"
#include "nst_rpc_messages.h"

#ifdef __cplusplus
extern "C" {
#endif

/* 1: the server knows REGION, LOAD, CALL, FILL and PERMUTE; about 1 kB of flash. */
#ifndef NST_RPC_LOAD
#define NST_RPC_LOAD 0
#endif

/* Memory the host may read; `flags`: NST_RPC_REGION_*, what else it may do with it. */
typedef struct nst_rpc_region {
    uint8_t *base;
    uint32_t bytes;
    uint8_t flags;
} nst_rpc_region;

/* A function that the host loads and calls: the argument lies in a region, `clock` is nst_port_clock. */
typedef uint32_t nst_loaded(void *argument, uint64_t (*clock)(void));

typedef struct nst_rpc_config {
    const nst_model *model;
    nst_status (*run)(void *arena);  /* runs the whole model: NAME_run */
    const nst_rpc_region *regions;   /* the first (NST_RPC_REGION_ARENA) is the arena */
    uint8_t *buffer;                 /* one received frame: the host's chunks follow its size */
    uint32_t *kept;                  /* a word that a restart keeps: sessions are counted in it */
    uint32_t clock_hz;               /* ticks per second of nst_port_clock */
    uint16_t buffer_bytes;           /* 64 or more */
    uint8_t region_count;
    uint8_t unit;                    /* NST_RPC_UNIT_* */
} nst_rpc_config;

/* The server's state, about 400 bytes; zeroed and set by nst_rpc_init. */
typedef struct nst_rpc {
    const nst_rpc_config *config;
    const nst_model *model; /* the config's, or the one that is loaded */
    nst_status (*run)(void *arena);
    /* receiver */
    uint32_t length;    /* bytes of the frame in the buffer */
    uint32_t frame_crc; /* of these bytes */
    uint32_t frames;    /* good frames */
    uint32_t bad_frames;
    uint8_t left;       /* bytes left in the current COBS block */
    uint8_t code;       /* code of the current COBS block; 0 before the first */
    uint8_t bad;        /* the frame is malformed or too long: skip to the next zero */
    /* session */
    uint8_t ran;        /* `run_reply` answers `run_sequence` */
    uint8_t channel;    /* what frames of the session carry */
    uint8_t reply_channel;
    uint16_t reply_sequence; /* of the request at work */
    uint32_t session;   /* 0: none */
    uint16_t sequence;  /* of the newest request */
    uint16_t run_sequence;
    uint32_t stack_bytes;
    uint32_t node_events;
    uint32_t node;      /* at work or next, where RUN goes from node to node */
    uint64_t node_start;
#if NST_RPC_LOAD
    uint32_t loaded_offset;
    uint32_t loaded_bytes; /* 0: nothing is loaded */
    uint8_t loaded_region;
#endif
    /* sender */
    uint32_t crc;
    uint8_t run_reply[NST_RPC_RUN_REPLY_BYTES];
    uint8_t block_bytes;
    uint8_t block[254];
} nst_rpc;

/* Prepare the server and tell the host that the board has started. */
void nst_rpc_init(nst_rpc *rpc, const nst_rpc_config *config);

/* Take one byte from the host; a frame it completes is carried out and answered. */
void nst_rpc_feed(nst_rpc *rpc, uint8_t byte);

/* Take bytes from the port for ever.  Does not return. */
void nst_rpc_serve(nst_rpc *rpc);

/* CRC-32 (zlib's) of `bytes` bytes at `data`, going on from `crc` (0 at the start). */
uint32_t nst_crc32(uint32_t crc, const uint8_t *data, uint32_t bytes);

#ifdef __cplusplus
}
#endif

#endif /* NST_RPC_H */
