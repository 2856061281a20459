/* start.c - the least start of a Cortex-M for a test program: FPU and vectors on, then newlib, whose files
 * are those of the host by semihosting. */
#include <stdint.h>

extern uint32_t stack_top[];
void _start(void);
void reset(void);

void reset(void) {
    *(volatile uint32_t *)0xE000ED88u |= 0xFu << 20; /* CPACR: full access to CP10 and CP11 */
    __asm__ volatile("dsb\n isb" ::: "memory");
    _start();
}

/* Ends the program with an error: semihosting SYS_EXIT, ADP_Stopped_RunTimeErrorUnknown. */
static void fault(void) {
    __asm__ volatile("mov r0, #0x18\n ldr r1, =0x20023\n bkpt 0xab");
    for (;;) {
    }
}

__attribute__((section(".vectors"), used)) static const void *const vectors[16] = {
    stack_top, (const void *)reset, (const void *)fault, (const void *)fault,
    (const void *)fault, (const void *)fault, (const void *)fault,
};
