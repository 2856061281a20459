/* start.c - the least start of a Cortex-M for a test program: FPU and vectors on, and the host's files by
 * semihosting.  newlib's own start is left out: the heap it asks QEMU for may be elsewhere than memory is. */
#include <stdint.h>
#include <stdio.h>

extern uint32_t stack_top[], __bss_start__[], __bss_end__[];
void initialise_monitor_handles(void);
int main(void);
void _exit(int status);
void reset(void);

void reset(void) {
    *(volatile uint32_t *)0xE000ED88u |= 0xFu << 20; /* CPACR: full access to CP10 and CP11 */
    __asm__ volatile("dsb\n isb" ::: "memory");
    for (volatile uint32_t *at = __bss_start__; at < __bss_end__; ++at) {
        *at = 0u;
    }
    initialise_monitor_handles();
    const int status = main();
    fflush(NULL);
    _exit(status);
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
