/* nst.c - the executor: walks a model's const tables.  See nst.h for the contract.
 *
 * Every node is checked before it runs (a few instructions per node), so a table that was damaged
 * in flash ends in a status, not in a jump to nowhere.
 */
#include "nst.h"

#include "nst_parallel.h"

/* Run or follow node `*node` and set `*node` to the next one. */
static nst_status nst_advance(const nst_model *model, uint8_t *arena, uint32_t *node, nst_hook hook,
                              void *user) {
    const uint32_t index = *node;
    const nst_node *const it = &model->nodes[index];
    const nst_operand *const operands = model->operands + it->first;
    uint32_t next = index + 1u;

    if (it->first > model->operand_count || it->count > model->operand_count - it->first) {
        return NST_ERR_NODE;
    }
    switch (it->flow) {
    case NST_FLOW_CALL:
        if (it->kernel == NULL) {
            return NST_ERR_NODE;
        }
        if (hook != NULL) {
            hook(user, index, 0);
        }
        it->kernel(arena, operands, model->consts);
        if (hook != NULL) {
            hook(user, index, 1);
        }
        break;
    case NST_FLOW_JUMP:
        if (it->count < 1u) {
            return NST_ERR_NODE;
        }
        next = operands[0];
        break;
    case NST_FLOW_JUMP_IF_NOT:
        if (it->count < 2u) {
            return NST_ERR_NODE;
        }
        if (*(const uint8_t *)nst_src(arena, operands[0], model->consts) == 0u) {
            next = operands[1];
        }
        break;
    case NST_FLOW_FORK:
        break;
    default:
        return NST_ERR_NODE;
    }
    if (next > model->node_count) {
        return NST_ERR_NODE;
    }
    *node = next;
    return next == model->node_count ? NST_DONE : NST_OK;
}

#if NST_PARALLEL != NST_PARALLEL_NONE
/* The lanes of a fork: counts[0] nodes from `first` on, then counts[1], ... */
typedef struct nst_lanes {
    const nst_model *model;
    uint8_t *arena;
    const nst_operand *counts;
    uint32_t first;
} nst_lanes;

static void nst_lane(void *context, uint32_t part) {
    const nst_lanes *const lanes = (const nst_lanes *)context;
    const nst_model *const model = lanes->model;
    uint32_t first = lanes->first;
    for (uint32_t n = 0u; n < part; ++n) {
        first += lanes->counts[n];
    }
    for (uint32_t n = 0u; n < lanes->counts[part]; ++n) {
        const nst_node *const it = &model->nodes[first + n];
        it->kernel(lanes->arena, model->operands + it->first, model->consts);
    }
}

/* Run the lanes of the fork at `*node` side by side and set `*node` behind them.  All nodes are checked before. */
static nst_status nst_fork(const nst_model *model, uint8_t *arena, uint32_t *node) {
    const nst_node *const it = &model->nodes[*node];
    nst_lanes lanes;
    uint32_t end = *node + 1u;
    if (it->count < 1u || it->first > model->operand_count ||
        it->count > model->operand_count - it->first) {
        return NST_ERR_NODE;
    }
    lanes.model = model;
    lanes.arena = arena;
    lanes.counts = model->operands + it->first;
    lanes.first = end;
    for (uint32_t n = 0u; n < it->count; ++n) {
        if (lanes.counts[n] > model->node_count - end) {
            return NST_ERR_NODE;
        }
        end += lanes.counts[n];
    }
    for (uint32_t n = lanes.first; n < end; ++n) {
        const nst_node *const call = &model->nodes[n];
        if (call->flow != NST_FLOW_CALL || call->kernel == NULL || call->first > model->operand_count ||
            call->count > model->operand_count - call->first) {
            return NST_ERR_NODE;
        }
    }
    nst_parallel(nst_lane, &lanes, it->count);
    *node = end;
    return end == model->node_count ? NST_DONE : NST_OK;
}
#endif

static nst_status nst_check_pointers(const nst_model *model, const void *arena) {
    if (model == NULL || arena == NULL) {
        return NST_ERR_NULL;
    }
    if (((uintptr_t)arena & ((uintptr_t)NST_ARENA_ALIGN - 1u)) != 0u) {
        return NST_ERR_ARENA_ALIGN;
    }
    return NST_OK;
}

nst_status nst_check(const nst_model *model, const void *arena, size_t arena_bytes) {
    const nst_status status = nst_check_pointers(model, arena);
    if (status != NST_OK) {
        return status;
    }
    return arena_bytes < model->arena_bytes ? NST_ERR_ARENA_SIZE : NST_OK;
}

void *nst_input(const nst_model *model, void *arena, uint32_t index) {
    if (model == NULL || arena == NULL || index >= model->input_count) {
        return NULL;
    }
    return (uint8_t *)arena + model->inputs[index].offset;
}

const void *nst_output(const nst_model *model, const void *arena, uint32_t index) {
    if (model == NULL || arena == NULL || index >= model->output_count) {
        return NULL;
    }
    return (const uint8_t *)arena + model->outputs[index].offset;
}

nst_status nst_step_hooked(const nst_model *model, void *arena, uint32_t *node, nst_hook hook, void *user) {
    const nst_status status = nst_check_pointers(model, arena);
    if (status != NST_OK) {
        return status;
    }
    if (node == NULL) {
        return NST_ERR_NULL;
    }
    if (*node >= model->node_count) {
        return *node == model->node_count ? NST_DONE : NST_ERR_INDEX;
    }
    return nst_advance(model, (uint8_t *)arena, node, hook, user);
}

nst_status nst_step(const nst_model *model, void *arena, uint32_t *node) {
    return nst_step_hooked(model, arena, node, NULL, NULL);
}

nst_status nst_run_hooked(const nst_model *model, void *arena, nst_hook hook, void *user) {
    nst_status status = nst_check_pointers(model, arena);
    uint32_t node = 0u;
    if (status != NST_OK) {
        return status;
    }
    if (model->node_count == 0u) {
        return NST_OK;
    }
    do {
#if NST_PARALLEL != NST_PARALLEL_NONE
        if (hook == NULL && model->nodes[node].flow == NST_FLOW_FORK) {
            status = nst_fork(model, (uint8_t *)arena, &node);
            continue;
        }
#endif
        status = nst_advance(model, (uint8_t *)arena, &node, hook, user);
    } while (status == NST_OK);
    return status == NST_DONE ? NST_OK : status;
}

nst_status nst_run(const nst_model *model, void *arena) {
    return nst_run_hooked(model, arena, NULL, NULL);
}
