/* count_plugin.c - a plug-in of QEMU's that counts instructions where the emulated program can read them.
 *
 * The 64-bit counter is the start of the file named `counter=PATH`, which both map.  Every instruction adds one before
 * it is carried out, on all threads together.
 */
#include "../common/qemu_plugin.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

NST_PLUGIN_EXPORT int qemu_plugin_version = 1;

static void *counter;

static void translated(qemu_plugin_id_t id, struct qemu_plugin_tb *tb) {
    const size_t count = qemu_plugin_tb_n_insns(tb);
    size_t i;
    (void)id;
    for (i = 0u; i < count; i++) {
        qemu_plugin_register_vcpu_insn_exec_inline(qemu_plugin_tb_get_insn(tb, i), QEMU_PLUGIN_INLINE_ADD_U64,
                                                   counter, 1u);
    }
}

NST_PLUGIN_EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const void *info, int argc, char **argv) {
    int file;
    (void)info;
    if (argc != 1 || strncmp(argv[0], "counter=", 8u) != 0) {
        fprintf(stderr, "count_plugin: takes counter=PATH\n");
        return 1;
    }
    file = open(argv[0] + 8, O_RDWR);
    counter = file < 0 ? MAP_FAILED : mmap(NULL, 4096u, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (counter == MAP_FAILED) {
        fprintf(stderr, "count_plugin: cannot map %s\n", argv[0] + 8);
        return 1;
    }
    close(file);
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
    return 0;
}
