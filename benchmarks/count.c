/* A QEMU TCG plugin that counts executed instructions; see benchmarks/neon.py.
 *
 * Debian ships no header of the plugin interface: what is used of its version 1 (QEMU 4.2 to 8.2,
 * include/qemu/qemu-plugin.h) is declared here. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef uint64_t qemu_plugin_id_t;
typedef struct qemu_info qemu_info_t;
struct qemu_plugin_tb;
typedef void (*translated)(qemu_plugin_id_t id, struct qemu_plugin_tb *tb);
typedef void (*at_exit)(qemu_plugin_id_t id, void *data);

void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t id, translated callback);
void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb *tb, int op, void *counter, uint64_t add);
void qemu_plugin_register_atexit_cb(qemu_plugin_id_t id, at_exit callback, void *data);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *tb);
int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t *info, int argc, char **argv);

int qemu_plugin_version = 1;

static uint64_t executed;
static char path[4096];

static void count_block(qemu_plugin_id_t id, struct qemu_plugin_tb *tb) {
    (void)id;
    qemu_plugin_register_vcpu_tb_exec_inline(tb, 0, &executed, qemu_plugin_tb_n_insns(tb));
}

static void write_count(qemu_plugin_id_t id, void *data) {
    (void)id;
    (void)data;
    FILE *const out = fopen(path, "w");
    if (out != NULL) {
        fprintf(out, "%llu\n", (unsigned long long)executed);
        fclose(out);
    }
}

/* Argument: out=FILE, which gets the number of instructions executed by the program. */
int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t *info, int argc, char **argv) {
    (void)info;
    for (int i = 0; i < argc; ++i) {
        if (strncmp(argv[i], "out=", 4) == 0 && strlen(argv[i] + 4) < sizeof path) {
            strcpy(path, argv[i] + 4);
        }
    }
    qemu_plugin_register_vcpu_tb_trans_cb(id, count_block);
    qemu_plugin_register_atexit_cb(id, write_count, NULL);
    return path[0] == '\0';
}
