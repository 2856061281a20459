/* blocks_plugin.c - a plug-in of QEMU's that counts how often each translated block is carried out between two
 * readings of the board's clock.
 *
 * `clock=ADDRESS` is where nst_port_clock begins, in hexadecimal.  Whenever the program comes there, the file
 * `blocks=PATH` is replaced by what was carried out since it was there before: a line for each block, of its address,
 * the number of its instructions, its code in hexadecimal and the count.  A block that QEMU translated more than once
 * has several lines.  Code may end with half an instruction too much, the next block's: QEMU looked at it.
 */
#include "qemu_plugin.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct nst_block {
    struct nst_block *next;
    uint64_t address;
    uint64_t count;
    uint64_t before; /* `count` at the last reading of the clock */
    size_t instructions;
    size_t bytes;
    uint8_t code[]; /* as it is in memory */
} nst_block;

NST_PLUGIN_EXPORT int qemu_plugin_version = 1;

static uint64_t clock_address;
static char *blocks_path;
static char *new_path; /* becomes `blocks_path` when it is whole */
static nst_block *blocks;

static void clock_read(unsigned int cpu, void *data) {
    FILE *file = fopen(new_path, "w");
    nst_block *block;
    size_t i;
    (void)cpu;
    (void)data;
    if (file == NULL) {
        fprintf(stderr, "blocks_plugin: cannot write %s\n", new_path);
        exit(1);
    }
    for (block = blocks; block != NULL; block = block->next) {
        const uint64_t times = block->count - block->before;
        block->before = block->count;
        if (times != 0u) {
            fprintf(file, "%" PRIx64 " %lu ", block->address, (unsigned long)block->instructions);
            for (i = 0u; i < block->bytes; i++) {
                fprintf(file, "%02x", (unsigned int)block->code[i]);
            }
            fprintf(file, " %" PRIu64 "\n", times);
        }
    }
    if (fclose(file) != 0 || rename(new_path, blocks_path) != 0) {
        fprintf(stderr, "blocks_plugin: cannot write %s\n", blocks_path);
        exit(1);
    }
}

static void translated(qemu_plugin_id_t id, struct qemu_plugin_tb *tb) {
    const size_t count = qemu_plugin_tb_n_insns(tb);
    nst_block *block;
    size_t bytes = 0u, i;
    (void)id;
    for (i = 0u; i < count; i++) {
        bytes += qemu_plugin_insn_size(qemu_plugin_tb_get_insn(tb, i));
    }
    block = (nst_block *)calloc(1u, sizeof *block + bytes);
    if (block == NULL) {
        fprintf(stderr, "blocks_plugin: no memory\n");
        exit(1);
    }
    for (i = 0u; i < count; i++) {
        const struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, i);
        memcpy(block->code + block->bytes, qemu_plugin_insn_data(insn), qemu_plugin_insn_size(insn));
        block->bytes += qemu_plugin_insn_size(insn);
    }
    block->instructions = count;
    block->address = qemu_plugin_tb_vaddr(tb);
    block->next = blocks;
    blocks = block;
    if (block->address == clock_address) {
        qemu_plugin_register_vcpu_tb_exec_cb(tb, clock_read, QEMU_PLUGIN_CB_NO_REGS, NULL);
    }
    qemu_plugin_register_vcpu_tb_exec_inline(tb, QEMU_PLUGIN_INLINE_ADD_U64, &block->count, 1u);
}

/* The arguments are QEMU's: it keeps none of them for us. */
static char *joined(const char *path, const char *end) {
    char *const text = (char *)malloc(strlen(path) + strlen(end) + 1u);
    return text == NULL ? NULL : strcat(strcpy(text, path), end);
}

NST_PLUGIN_EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const void *info, int argc, char **argv) {
    int i;
    (void)info;
    for (i = 0; i < argc; i++) {
        if (strncmp(argv[i], "clock=", 6u) == 0) {
            clock_address = strtoull(argv[i] + 6, NULL, 16);
        } else if (strncmp(argv[i], "blocks=", 7u) == 0) {
            blocks_path = joined(argv[i] + 7, "");
            new_path = joined(argv[i] + 7, ".new");
        }
    }
    if (argc != 2 || clock_address == 0u || blocks_path == NULL || new_path == NULL) {
        fprintf(stderr, "blocks_plugin: takes clock=ADDRESS,blocks=PATH\n");
        return 1;
    }
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
    return 0;
}
