/* caches.c - see caches.h. */
#include "caches.h"

#include "cortex_m.h"

#define NST_SCB_CCSIDR NST_REG32(0xE000ED80u)
#define NST_SCB_CSSELR NST_REG32(0xE000ED84u)
#define NST_SCB_ICIALLU NST_REG32(0xE000EF50u)
#define NST_SCB_DCISW NST_REG32(0xE000EF60u)
#define NST_SCB_CCR_DC (1u << 16)
#define NST_SCB_CCR_IC (1u << 17)

static void nst_barrier(void) {
    __asm__ volatile("dsb\n isb" ::: "memory");
}

void nst_caches_start(void) {
    nst_barrier();
    NST_SCB_ICIALLU = 0u;
    nst_barrier();
    NST_SCB_CCR |= NST_SCB_CCR_IC;
    nst_barrier();
    if ((NST_SCB_CCR & NST_SCB_CCR_DC) == 0u) {
        uint32_t geometry, shift, set, way, ways, sets, power = 0u;
        NST_SCB_CSSELR = 0u; /* data, first level */
        nst_barrier();
        geometry = NST_SCB_CCSIDR;
        shift = (geometry & 7u) + 4u; /* of a line */
        ways = ((geometry >> 3) & 0x3FFu) + 1u;
        sets = ((geometry >> 13) & 0x7FFFu) + 1u;
        while ((1u << power) < ways) {
            power++;
        }
        for (set = 0u; set < sets; set++) {
            for (way = 0u; way < ways; way++) {
                NST_SCB_DCISW = (power == 0u ? 0u : way << (32u - power)) | set << shift;
            }
        }
        nst_barrier();
        NST_SCB_CCR |= NST_SCB_CCR_DC;
        nst_barrier();
    }
}
