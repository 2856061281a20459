/* nst_config.h - every knob of the runtime and of generated code, with unit, range and cost.
 *
 * Override a knob on the compiler's command line (-DNST_ARENA_ALIGN=32) or by a file of the same name earlier on
 * the include path.
 */
#ifndef NST_CONFIG_H
#define NST_CONFIG_H

/* Alignment of an arena, bytes; a power of two.  The planner aligns each tensor to NST_ARENA_ALIGN
 * or to its own element size; vector loads are unaligned-safe, so this is a matter of speed. */
#ifndef NST_ARENA_ALIGN
#if defined(__x86_64__) || defined(__aarch64__)
#define NST_ARENA_ALIGN 64
#else
#define NST_ARENA_ALIGN 8
#endif
#endif

/* Attribute that aligns an object to `bytes`. */
#ifndef NST_ALIGNED
#if defined(__GNUC__) || defined(__clang__)
#define NST_ALIGNED(bytes) __attribute__((aligned(bytes)))
#else
#define NST_ALIGNED(bytes)
#endif
#endif

/* Attribute that places weights: for instance __attribute__((section(".ext_flash"))).
 * Costs nothing when empty: weights then go to .rodata. */
#ifndef NST_WEIGHTS_SECTION
#define NST_WEIGHTS_SECTION
#endif

/* `restrict` in C, its spelling in C++ compilers. */
#ifndef NST_RESTRICT
#if defined(__cplusplus)
#if defined(__GNUC__) || defined(__clang__)
#define NST_RESTRICT __restrict__
#else
#define NST_RESTRICT
#endif
#else
#define NST_RESTRICT restrict
#endif
#endif

/* Kernels stand alone: inlined into the function that calls them all, they share its registers. */
#if !defined(NST_KERNEL)
#if defined(__GNUC__) || defined(__clang__)
#define NST_KERNEL static __attribute__((noinline))
#else
#define NST_KERNEL static
#endif
#endif

/* Asks the cache for the line at `pointer` + `bytes`, which may lie outside the object, hence the integers.  Only
 * schedules with the step Prefetch use it; one instruction each, none where cores have no such cache. */
#ifndef NST_PREFETCH
#if (defined(__GNUC__) || defined(__clang__)) && (defined(__x86_64__) || defined(__aarch64__))
#define NST_PREFETCH(pointer, bytes) \
    __builtin_prefetch((const void *)((uintptr_t)(pointer) + (uintptr_t)(bytes)))
#else
#define NST_PREFETCH(pointer, bytes) ((void)0)
#endif
#endif

/* What runs the parts of models generated with --threads (nst_parallel.h): the caller alone, OpenMP, or the two functions
 * nst_port_fork and nst_port_join that a port supplies.  Costs nothing in models of one thread; with NONE, a call
 * per part.  The same choice for all files: the models and nst.c. */
#define NST_PARALLEL_NONE 0
#define NST_PARALLEL_OPENMP 1
#define NST_PARALLEL_PORT 2
#ifndef NST_PARALLEL
#if defined(_OPENMP)
#define NST_PARALLEL NST_PARALLEL_OPENMP
#else
#define NST_PARALLEL NST_PARALLEL_NONE
#endif
#endif

#endif /* NST_CONFIG_H */
