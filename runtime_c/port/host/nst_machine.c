/* nst_machine.c - what a core can do at best: multiply-adds, and reading memory.
 *
 * Both kernels have the form that nst_trial.c times. NST_MACHINE_BYTES is the width of a vector. */
#include "nst_trial.h"

#include <string.h>

#ifndef NST_MACHINE_BYTES
#define NST_MACHINE_BYTES 4
#endif

typedef float vector __attribute__((vector_size(NST_MACHINE_BYTES)));

/* Twelve chains hide a latency of 4 to 6 cycles on two units, and fit 16 registers with their two operands. */
enum { CHAINS = 12, STEPS = 4096 };

void nst_machine_fma(void *const *operands);
void nst_machine_read(void *const *operands);

/* operands[0]: two floats in, one out. CHAINS * STEPS multiply-adds of whole vectors. */
void nst_machine_fma(void *const *operands) {
    float *const data = (float *)operands[0];
    vector chains[CHAINS];
    vector scale, shift;
    int i, k;
    for (i = 0; i < (int)(sizeof(vector) / sizeof(float)); i++) {
        ((float *)&scale)[i] = data[0];
        ((float *)&shift)[i] = data[1];
    }
    for (k = 0; k < CHAINS; k++) {
        chains[k] = shift * (float)k;
    }
    for (i = 0; i < STEPS; i++) {
#pragma GCC unroll 12
        for (k = 0; k < CHAINS; k++) {
            chains[k] = chains[k] * scale + shift;
        }
    }
    for (k = 1; k < CHAINS; k++) {
        chains[0] += chains[k];
    }
    data[2] = ((float *)&chains[0])[0];
}

/* operands[0]: a buffer; operands[1]: its size, a multiple of 8 vectors. Reads it once. */
void nst_machine_read(void *const *operands) {
    const vector *data = (const vector *)operands[0];
    vector sums[8];
    size_t bytes, i, count;
    int k;
    memcpy(&bytes, operands[1], sizeof bytes);
    count = bytes / sizeof(vector);
    memset(sums, 0, sizeof sums);
    for (i = 0u; i < count; i += 8u) {
#pragma GCC unroll 8
        for (k = 0; k < 8; k++) {
            sums[k] += data[i + (size_t)k];
        }
    }
    for (k = 1; k < 8; k++) {
        sums[0] += sums[k];
    }
    memcpy((unsigned char *)operands[1] + sizeof bytes, &sums[0], sizeof(float));
}
