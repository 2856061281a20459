/* rp2.c - port of RP2040 and RP2350: crystal, system PLL, UART0 on GPIO 0 and 1.
 *
 * Both have the same blocks at other addresses (RP2040 datasheet, 2.14 to 2.19; RP2350 datasheet, 5 to 9).  The
 * board defines those addresses, the bits of RESETS, the PLL's dividers and NST_RP2_IRQS.  While the PLL
 * is not ready the core runs from the crystal, or from what it starts with.
 */
#include "cortex_m.h"
#include "systick_clock.h"
#include "uart.h"

#if NST_XOSC_HZ / NST_PLL_REFDIV * NST_PLL_FBDIV / NST_PLL_POSTDIV1 / NST_PLL_POSTDIV2 != NST_CLOCK_HZ
#error "the PLL's dividers do not make the clock that board.toml states"
#endif
#if NST_XOSC_HZ / NST_PLL_REFDIV * NST_PLL_FBDIV < 750000000u || NST_XOSC_HZ / NST_PLL_REFDIV * NST_PLL_FBDIV > 1600000000u
#error "the PLL's oscillator must run at 750 to 1600 MHz"
#endif
#if NST_UART_CLOCK_HZ != NST_CLOCK_HZ
#error "the UART counts clk_peri, which is clk_sys here"
#endif

#define NST_CLEAR 0x3000u /* writes to the address clear bits */
#define NST_RESETS_RESET (NST_RESETS_BASE + 0x0u)
#define NST_RESETS_DONE (NST_RESETS_BASE + 0x8u)
#define NST_XOSC_CTRL (NST_XOSC_BASE + 0x0u)
#define NST_XOSC_STATUS (NST_XOSC_BASE + 0x4u)
#define NST_XOSC_STARTUP (NST_XOSC_BASE + 0xCu)
#define NST_PLL_CS (NST_PLL_BASE + 0x0u)
#define NST_PLL_PWR (NST_PLL_BASE + 0x4u)
#define NST_PLL_FBDIV_INT (NST_PLL_BASE + 0x8u)
#define NST_PLL_PRIM (NST_PLL_BASE + 0xCu)
#define NST_CLK_REF_CTRL (NST_CLOCKS_BASE + 0x30u)
#define NST_CLK_REF_SELECTED (NST_CLOCKS_BASE + 0x38u)
#define NST_CLK_SYS_CTRL (NST_CLOCKS_BASE + 0x3Cu)
#define NST_CLK_SYS_SELECTED (NST_CLOCKS_BASE + 0x44u)
#define NST_CLK_PERI_CTRL (NST_CLOCKS_BASE + 0x48u)
#define NST_IO_GPIO_CTRL(n) (NST_IO_BASE + 8u * (n) + 4u)
#define NST_PADS_GPIO(n) (NST_PADS_BASE + 4u * (n) + 4u)

typedef NST_VECTORS(NST_RP2_IRQS) nst_vector_table;

extern const nst_vector_table nst_vectors;
#if NST_RP2_IRQS == 32
#if NST_UART_RX_IRQ != 20
#error "UART0 of RP2040 is interrupt 20"
#endif
NST_VECTORS_PLACE const nst_vector_table nst_vectors = {
    nst_handler_stack_top,
    NST_CORE_VECTORS_WITH(nst_systick_entry),
    {NST_UNUSED_16, NST_UNUSED_4, nst_uart_rx_handler, NST_UNUSED_8, NST_UNUSED_2, nst_fault_entry}};
#else
#if NST_RP2_IRQS != 52 || NST_UART_RX_IRQ != 33
#error "RP2350 has 52 interrupts; UART0 is 33"
#endif
NST_VECTORS_PLACE const nst_vector_table nst_vectors = {
    nst_handler_stack_top,
    NST_CORE_VECTORS_WITH(nst_systick_entry),
    {NST_UNUSED_32, nst_fault_entry, nst_uart_rx_handler, NST_UNUSED_16, NST_UNUSED_2}};

/* What RP2350's boot ROM looks for in the first 4 kB (datasheet, 5.9.5.1): an Arm image, secure. */
extern const uint32_t nst_image_def[5];
__attribute__((section(".nst_image_def"), used)) const uint32_t nst_image_def[5] = {
    0xFFFFDED3u, 0x10210142u, 0x000001FFu, 0x00000000u, 0xAB123579u};
#endif

static void nst_out_of_reset(uint32_t bits) {
    NST_REG32(NST_RESETS_RESET + NST_CLEAR) = bits;
    nst_await(NST_RESETS_DONE, bits, bits);
}

static void nst_clocks_start(void) {
    NST_REG32(NST_XOSC_STARTUP) = (NST_XOSC_HZ / 1000u + 128u) / 256u; /* a millisecond */
    NST_REG32(NST_XOSC_CTRL) = (0xFABu << 12) | 0xAA0u;                /* enable, 1 to 15 MHz */
    if (!nst_await(NST_XOSC_STATUS, 1u << 31, 1u << 31)) {
        return;
    }
    NST_REG32(NST_CLK_SYS_CTRL + NST_CLEAR) = 1u; /* clk_ref, while the PLL changes */
    nst_await(NST_CLK_SYS_SELECTED, 1u << 0, 1u << 0);
    NST_REG32(NST_CLK_REF_CTRL) = 2u; /* the crystal */
    nst_await(NST_CLK_REF_SELECTED, 1u << 2, 1u << 2);

    nst_out_of_reset(NST_RESET_PLL);
    NST_REG32(NST_PLL_CS) = NST_PLL_REFDIV;
    NST_REG32(NST_PLL_FBDIV_INT) = NST_PLL_FBDIV;
    NST_REG32(NST_PLL_PWR + NST_CLEAR) = (1u << 5) | 1u; /* VCOPD, PD */
    if (!nst_await(NST_PLL_CS, 1u << 31, 1u << 31)) {
        return;
    }
    NST_REG32(NST_PLL_PRIM) = (NST_PLL_POSTDIV1 << 16) | (NST_PLL_POSTDIV2 << 12);
    NST_REG32(NST_PLL_PWR + NST_CLEAR) = 1u << 3; /* POSTDIVPD */
    NST_REG32(NST_CLK_SYS_CTRL) = 0u;             /* auxiliary source: PLL */
    NST_REG32(NST_CLK_SYS_CTRL) = 1u;
    nst_await(NST_CLK_SYS_SELECTED, 1u << 1, 1u << 1);
}

void nst_port_start(void) {
    nst_clocks_start();
    NST_REG32(NST_CLK_PERI_CTRL) = 1u << 11; /* enable, from clk_sys */
    nst_out_of_reset(NST_RESET_IO | NST_RESET_PADS);
    NST_REG32(NST_RESETS_RESET + 0x2000u) = NST_RESET_UART; /* a restart does not reset it */
    nst_out_of_reset(NST_RESET_UART);
    NST_REG32(NST_IO_GPIO_CTRL(0u)) = 2u; /* UART0 TX */
    NST_REG32(NST_IO_GPIO_CTRL(1u)) = 2u; /* UART0 RX */
    NST_REG32(NST_PADS_GPIO(0u)) = 0x56u; /* 4 mA, input, hysteresis; on RP2350 not isolated */
    NST_REG32(NST_PADS_GPIO(1u)) = 0x5Au; /* pulled up: silence where no cable is */
    nst_uart_start();
}
