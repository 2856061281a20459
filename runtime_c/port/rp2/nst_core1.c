/* nst_core1.c - nst_port_fork and nst_port_join on the second core of an RP2040 or RP2350 (Arm cores).
 *
 * Compile everything with -DNST_PARALLEL=2 and link this file; no SDK is needed.  Core 1 must still be where the boot ROM
 * leaves it, so an application that uses core 1 itself cannot use this.  It is launched by the first fork, over the
 * FIFO between the cores, as the data sheets say (RP2040: 2.8.2 "Launching Code On Processor Core 1"; RP2350: 5.3
 * "Launching code on processor core 1"), and then waits for work with WFE.
 *
 * Fork from core 0 only; from core 1, from an interrupt during a run, or where core 1 does not answer, there is no free
 * core and the caller does all parts.
 */
#include "nst_parallel.h"

#if NST_PARALLEL != NST_PARALLEL_PORT
#error "compile this file, the models and nst.c with -DNST_PARALLEL=2"
#endif

/* Stack of core 1, bytes: what one part of a kernel needs. */
#ifndef NST_CORE1_STACK_BYTES
#define NST_CORE1_STACK_BYTES 4096u
#endif

/* How often core 0 looks for an answer of core 1 to a word of the launch; then it gives up. */
#ifndef NST_CORE1_PATIENCE
#define NST_CORE1_PATIENCE 100000u
#endif

/* Registers of SIO, the same on both chips (RP2040 data sheet 2.3.1.7, RP2350 3.1.11). */
#define SIO ((uintptr_t)0xd0000000u)
#define REGISTER(offset) (*(volatile uint32_t *)(SIO + (offset)))
#define SIO_CPUID REGISTER(0x000u)
#define SIO_FIFO_ST REGISTER(0x050u) /* bit 0: a word to read; bit 1: room to write; bits 2, 3: errors, cleared by writing */
#define SIO_FIFO_WR REGISTER(0x054u)
#define SIO_FIFO_RD REGISTER(0x058u)
#define FIFO_VLD 1u
#define FIFO_RDY 2u
#define FIFO_ERRORS 12u

#define VTOR (*(volatile uint32_t *)(uintptr_t)0xe000ed08u)
#define CPACR (*(volatile uint32_t *)(uintptr_t)0xe000ed88u)

/* Memory is not cached, so the barrier orders what the cores see; SEV wakes the other one from WFE. */
#define BARRIER() __asm__ volatile("dmb" ::: "memory")
#define SIGNAL() __asm__ volatile("dsb\n\tsev" ::: "memory")
#define WAIT() __asm__ volatile("wfe" ::: "memory")

enum { NOT_LAUNCHED, LAUNCHED, NO_ANSWER };

static uint64_t core1_stack[NST_CORE1_STACK_BYTES / 8u];
static volatile uint32_t posted; /* 1 from fork until the part has run; core 0 sets it, core 1 clears it */
static nst_part volatile core1_run;
static void *volatile core1_context;
static uint32_t core1_state = NOT_LAUNCHED;
static volatile uint32_t taken; /* 1 from fork to join: an interrupt finds no free core */

/* Where core 1 starts: its stack pointer is set, its floating-point unit is not. */
static void core1_main(void) {
#if defined(__ARM_FP)
    CPACR |= (uint32_t)0xfu << 20;
    __asm__ volatile("dsb\n\tisb" ::: "memory");
#endif
    for (;;) {
        while (posted == 0u) {
            WAIT();
        }
        BARRIER();
        core1_run(core1_context, 1u);
        BARRIER();
        posted = 0u;
        SIGNAL();
    }
}

static void drain(void) {
    while ((SIO_FIFO_ST & FIFO_VLD) != 0u) {
        (void)SIO_FIFO_RD;
    }
    SIO_FIFO_ST = FIFO_ERRORS;
}

/* Send a word to the boot ROM of core 1, which echoes it; 0 when it does not. */
static int tell(uint32_t word) {
    uint32_t patience = NST_CORE1_PATIENCE;
    while ((SIO_FIFO_ST & FIFO_RDY) == 0u) {
        if (--patience == 0u) {
            return 0;
        }
    }
    SIO_FIFO_WR = word;
    SIGNAL();
    while ((SIO_FIFO_ST & FIFO_VLD) == 0u) {
        if (--patience == 0u) {
            return 0;
        }
    }
    return SIO_FIFO_RD == word;
}

/* The six words: 0, 0, 1, vector table, stack pointer, entry.  A wrong echo means: from the start. */
static uint32_t launch(void) {
    const uint32_t words[6] = {0u, 0u, 1u, VTOR,
                               (uint32_t)(uintptr_t)(core1_stack + NST_CORE1_STACK_BYTES / 8u),
                               (uint32_t)(uintptr_t)core1_main};
    for (uint32_t tries = 0; tries < 8u; ++tries) {
        uint32_t n = 0;
        while (n < 6u) {
            if (words[n] == 0u) {
                drain();
                SIGNAL(); /* core 1 may wait for room */
            }
            if (!tell(words[n])) {
                break;
            }
            ++n;
        }
        if (n == 6u) {
            return LAUNCHED;
        }
    }
    return NO_ANSWER;
}

uint32_t nst_port_fork(nst_part run, void *context, uint32_t parts) {
    if (parts < 2u || SIO_CPUID != 0u || taken != 0u) {
        return 0u;
    }
    taken = 1u;
    if (core1_state == NOT_LAUNCHED) {
        core1_state = launch();
    }
    if (core1_state != LAUNCHED) {
        taken = 0u;
        return 0u;
    }
    core1_run = run;
    core1_context = context;
    BARRIER();
    posted = 1u;
    SIGNAL();
    return 1u;
}

void nst_port_join(void) {
    while (posted != 0u) {
        WAIT();
    }
    BARRIER();
    taken = 0u;
}
