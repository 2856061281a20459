#include "tiny.h"

#include <math.h>

static void tiny_scale(uint8_t *arena, const nst_operand *operands, const void *const *consts) {
    float *const t = (float *)nst_dst(arena, operands[0]);
    const float *const x = (const float *)nst_src(arena, operands[1], consts);
    const float *const w = (const float *)nst_src(arena, operands[2], consts);
    int i;
    for (i = 0; i < 4; i++) {
        t[i] = x[i] * w[i];
    }
}

/* Uses `bytes` bytes of stack and a little more. */
__attribute__((noinline)) static uint32_t tiny_stack(uint32_t bytes) {
    volatile uint8_t block[TINY_STACK_BYTES];
    uint32_t i;
    for (i = 0u; i < bytes; i++) {
        block[i] = (uint8_t)i;
    }
    return block[bytes / 2u];
}

static uint32_t tiny_sink;

__attribute__((noinline)) static void tiny_overflow(uint32_t depth) {
    volatile uint8_t block[256];
    block[0] = (uint8_t)depth;
    if (depth != 0u) {
        tiny_overflow(depth - 1u);
    }
    tiny_sink += block[0];
}

static void tiny_mode(uint8_t *arena, const nst_operand *operands, const void *const *consts) {
    const int32_t mode = *(const int32_t *)nst_src(arena, operands[1], consts);
    (void)consts;
    switch (mode) {
    case 1: /* a read from an address where nothing is */
        tiny_sink = *(const volatile uint32_t *)(uintptr_t)0xF0000000u;
        break;
    case 2: /* for ever */
        for (;;) {
            __asm__ volatile("" ::: "memory");
        }
    case 3: /* TINY_STACK_BYTES bytes of stack */
        tiny_sink = tiny_stack(TINY_STACK_BYTES - 96u);
        break;
    case 4:
        tiny_overflow(40000u);
        break;
    case 5:
        __builtin_trap();
    default: /* 2 instructions a turn, from 100 turns on */
        if (mode >= 100) {
            uint32_t turns = (uint32_t)mode;
#if defined(__arm__)
            __asm__ volatile("1: subs %0, #1\n bne 1b" : "+l"(turns) : : "cc");
#elif defined(__aarch64__)
            __asm__ volatile("1: subs %w0, %w0, #1\n b.ne 1b" : "+r"(turns) : : "cc");
#elif defined(__riscv)
            __asm__ volatile("1: addi %0, %0, -1\n bnez %0, 1b" : "+r"(turns));
#endif
        }
        break;
    }
}

static void tiny_finish(uint8_t *arena, const nst_operand *operands, const void *const *consts) {
    float *const y = (float *)nst_dst(arena, operands[0]);
    const float *const t = (const float *)nst_src(arena, operands[1], consts);
    int i;
    for (i = 0; i < 4; i++) {
        y[i] = sqrtf(fabsf(t[i])) + 1.0f;
    }
}

static const nst_operand tiny_operands[] = {32u, 0u, NST_CONST | 0u, 48u, 16u, 64u, 32u};
static const void *const tiny_consts[] = {tiny_w};
static const nst_node tiny_nodes[] = {{tiny_scale, 0u, 3u, 1u, NST_FLOW_CALL},
                                      {tiny_mode, 3u, 2u, 1u, NST_FLOW_CALL},
                                      {tiny_finish, 5u, 2u, 1u, NST_FLOW_CALL}};
static const int32_t tiny_shape[] = {4};
static const nst_tensor tiny_inputs[] = {{0u, 16u, tiny_shape, 1u, NST_FLOAT32},
                                         {16u, 4u, NULL, 0u, NST_INT32}};
static const nst_tensor tiny_outputs[] = {{64u, 16u, tiny_shape, 1u, NST_FLOAT32}};

const nst_model tiny_model = {tiny_nodes, tiny_operands, tiny_consts, tiny_inputs, tiny_outputs,
                              3u, 7u, 1u, 2u, 1u, TINY_ARENA_BYTES, 0x12345678u};

nst_status tiny_run(void *arena) {
    return nst_run(&tiny_model, arena);
}
