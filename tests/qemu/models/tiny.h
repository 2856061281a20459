/* tiny.h - a hand-written model in the form of a generated one, for tests of boards.
 *
 * Inputs: x float[4]; mode int32, which chooses what the second kernel does.  Output: y float[4] =
 * sqrt(|x * w|) + 1.
 */
#ifndef TINY_H
#define TINY_H
#include "nst.h"
#ifdef __cplusplus
extern "C" {
#endif
#define TINY_ARENA_BYTES 70000u
#define TINY_STACK_BYTES 4096u
extern const nst_model tiny_model;
extern const float tiny_w[4];
nst_status tiny_run(void *arena);
#ifdef __cplusplus
}
#endif
#endif
