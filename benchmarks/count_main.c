/* Runs a model argv[1] times in an arena read from argv[2] and written to argv[3].
 * Later runs find whatever the first left in place of the inputs.
 * NB_RUN: the model's run function, NB_ARENA: its bytes. */
#include <stdio.h>
#include <stdlib.h>

int NB_RUN(void *arena);

static unsigned char arena[NB_ARENA] __attribute__((aligned(64)));

int main(int argc, char **argv) {
    FILE *file = argc == 4 ? fopen(argv[2], "rb") : NULL;
    if (file == NULL || fread(arena, 1, sizeof arena, file) != sizeof arena) {
        return 2;
    }
    fclose(file);
    for (int left = atoi(argv[1]); left > 0; --left) {
        if (NB_RUN(arena) != 0) {
            return 3;
        }
    }
    file = fopen(argv[3], "wb");
    return file == NULL || fwrite(arena, 1, sizeof arena, file) != sizeof arena || fclose(file);
}
