/* nst.h - the nestling runtime: const model tables and the executor that walks them.
 *
 * A generated model NAME brings NAME.h with `extern const nst_model NAME_model`, the number of bytes
 * NAME_ARENA_BYTES, and `nst_status NAME_run(void *arena)`.  The caller owns the arena: one block of
 * memory of at least NAME_ARENA_BYTES bytes, aligned to NST_ARENA_ALIGN.  It holds the inputs, the
 * outputs and all intermediate tensors of one instance of the model; nothing else is written, so
 * two arenas are two instances, and different arenas may run in different threads at once.
 *
 * There is no heap, no recursion and no mutable global.
 */
#ifndef NST_H
#define NST_H

#include <stddef.h>
#include <stdint.h>

#include "nst_config.h"

#ifdef __cplusplus
extern "C" {
#endif

#define NST_VERSION 1u

/* Status codes and their texts, stated once: X(name, text). */
#define NST_STATUS_LIST(X)                                                       \
    X(OK, "ok")                                                                  \
    X(DONE, "the last node has run")                                             \
    X(ERR_NULL, "a required pointer is null")                                    \
    X(ERR_ARENA_ALIGN, "the arena is not aligned to NST_ARENA_ALIGN bytes")      \
    X(ERR_ARENA_SIZE, "the arena is smaller than the model's arena_bytes")       \
    X(ERR_INDEX, "an index lies outside the model's tables")                     \
    X(ERR_NODE, "a node of the model's table is malformed")

typedef enum nst_status {
#define NST_STATUS_ENUM(name, text) NST_##name,
    NST_STATUS_LIST(NST_STATUS_ENUM)
#undef NST_STATUS_ENUM
    NST_STATUS_COUNT
} nst_status;

/* Text of a status, for logs; "unknown status" outside the list.  Lives in a file of its own
 * (nst_status.c), so firmware that never calls it does not carry the strings. */
const char *nst_status_text(nst_status status);

/* Element types; the values are ONNX's TensorProto.DataType. */
typedef enum nst_dtype {
    NST_FLOAT32 = 1,
    NST_UINT8 = 2,
    NST_INT8 = 3,
    NST_UINT16 = 4,
    NST_INT16 = 5,
    NST_INT32 = 6,
    NST_INT64 = 7,
    NST_BOOL = 9,
    NST_FLOAT64 = 11,
    NST_UINT32 = 12,
    NST_UINT64 = 13
} nst_dtype;

/* An input or output of the model: dense, row-major, in the arena. */
typedef struct nst_tensor {
    uint32_t offset;      /* bytes from the start of the arena */
    uint32_t bytes;       /* bytes of the whole tensor */
    const int32_t *shape; /* `rank` extents; null when rank is 0 */
    uint16_t rank;
    uint16_t dtype;       /* an nst_dtype */
} nst_tensor;

/* An operand of a node: a byte offset in the arena, or, with NST_CONST set, an index into `consts`. */
typedef uint32_t nst_operand;
#define NST_CONST 0x80000000u

/* A kernel: reads and writes its operands, outputs first.  Cannot fail. */
typedef void (*nst_kernel)(uint8_t *arena, const nst_operand *operands, const void *const *consts);

/* What the executor does at a node. */
enum {
    NST_FLOW_CALL = 0,       /* kernel(arena, operands + first, consts) */
    NST_FLOW_JUMP = 1,       /* go on at node operands[first] */
    NST_FLOW_JUMP_IF_NOT = 2, /* if the bool at operand `first` is 0, go on at node operands[first+1] */
    NST_FLOW_FORK = 3         /* `count` runs of calls may run side by side: operands[first] of those that
                               * follow, then operands[first+1] of the next, ...; or all, in order */
};

typedef struct nst_node {
    nst_kernel kernel;    /* null unless flow is NST_FLOW_CALL */
    uint32_t first;       /* index of the node's first operand in `operands` */
    uint16_t count;       /* number of operands */
    uint8_t output_count; /* how many of them, from the first, are written */
    uint8_t flow;         /* NST_FLOW_* */
} nst_node;

typedef struct nst_model {
    const nst_node *nodes;
    const nst_operand *operands;
    const void *const *consts;
    const nst_tensor *inputs;
    const nst_tensor *outputs;
    uint32_t node_count;
    uint32_t operand_count;
    uint32_t const_count;
    uint16_t input_count;
    uint16_t output_count;
    uint32_t arena_bytes;
    uint32_t digest; /* first 32 bits of the model file's SHA-256: tells models apart on a board */
} nst_model;

/* Check that `arena` may serve `model`: not null, aligned, and `arena_bytes` large enough. */
nst_status nst_check(const nst_model *model, const void *arena, size_t arena_bytes);

/* Pointer to input or output `index` in the arena; null when there is none.  Inputs share storage with
 * intermediate tensors: write all of them before each run.  Outputs stay valid until the next
 * write to the arena. */
void *nst_input(const nst_model *model, void *arena, uint32_t index);
const void *nst_output(const nst_model *model, const void *arena, uint32_t index);

/* Run the whole model. */
nst_status nst_run(const nst_model *model, void *arena);

/* Run one node.  `*node` starts at 0; returns NST_OK with `*node` set to the next node, or NST_DONE
 * when there is none. */
nst_status nst_step(const nst_model *model, void *arena, uint32_t *node);

/* Run the whole model and call `hook` before (after == 0) and after (after == 1) each kernel. */
typedef void (*nst_hook)(void *user, uint32_t node, int after);
nst_status nst_run_hooked(const nst_model *model, void *arena, nst_hook hook, void *user);

/* Run one node, as nst_step, with a hook. */
nst_status nst_step_hooked(const nst_model *model, void *arena, uint32_t *node, nst_hook hook, void *user);

/* Used by generated code: where an operand lies. */
static inline const void *nst_src(const uint8_t *arena, nst_operand operand, const void *const *consts) {
    return (operand & NST_CONST) != 0u ? consts[operand & ~NST_CONST] : (const void *)(arena + operand);
}
static inline void *nst_dst(uint8_t *arena, nst_operand operand) {
    return (void *)(arena + operand);
}

#ifdef __cplusplus
}
#endif

#endif /* NST_H */
