/* boot2.S - second stage of RP2040's boot: makes the flash readable in place, four bits at a time.
 *
 * The ROM copies the first 256 bytes of flash to the end of its RAM, checks their CRC and calls them (RP2040
 * datasheet, 2.8.1.3).  What is here talks to a Winbond W25Q, as Pico's, through the SSI (4.10.13): it sets the
 * flash's Quad Enable bit where it is not set (W25Q16JV, 7.1.4), reads once with Fast Read Quad I/O and the mode
 * bits A0, after which the flash wants no command any more (8.2.12), and makes the SSI send just that: address
 * and mode.  At a divider of 2 the flash is read at half the core's clock.
 *
 * boot2.c holds what this assembles to, with its CRC: `python boards/rpi_pico/boot2.py` writes it.
 */
    .syntax unified
    .cpu cortex-m0plus
    .thumb
    .section .boot2, "ax"

    .equ CTRLR0, 0x00
    .equ CTRLR1, 0x04
    .equ SSIENR, 0x08
    .equ BAUDR, 0x14
    .equ SR, 0x28
    .equ DR0, 0x60

    .global boot2
    .thumb_func
boot2:
    /* Pads of the flash: the clock fast and at 8 mA, data without hysteresis (2.19.6.3). */
    ldr r3, =0x40020000
    movs r0, #0x21
    str r0, [r3, #4]
    ldr r0, [r3, #8]
    movs r1, #2
    bics r0, r1
    str r0, [r3, #8]
    str r0, [r3, #12]
    str r0, [r3, #16]
    str r0, [r3, #20]

    ldr r3, =0x18000000
    movs r0, #0
    str r0, [r3, #SSIENR]
    movs r0, #2
    str r0, [r3, #BAUDR]
    movs r0, #1
    movs r1, #0xf0              /* RX_SAMPLE_DLY */
    str r0, [r3, r1]
    ldr r0, =(7 << 16)          /* 8 bits, to and fro */
    str r0, [r3, #CTRLR0]
    movs r0, #1
    str r0, [r3, #SSIENR]

    movs r0, #0x35              /* read status register 2 */
    bl status
    cmp r0, #2
    beq ready
    movs r0, #0x06              /* write enable */
    str r0, [r3, #DR0]
    bl wait
    ldr r0, [r3, #DR0]
    movs r0, #0x01              /* write status registers 1 and 2 */
    str r0, [r3, #DR0]
    movs r0, #0
    str r0, [r3, #DR0]
    movs r0, #2
    str r0, [r3, #DR0]
    bl wait
    ldr r0, [r3, #DR0]
    ldr r0, [r3, #DR0]
    ldr r0, [r3, #DR0]
1:  movs r0, #0x05              /* read status register 1 until it is not busy */
    bl status
    movs r1, #1
    tst r0, r1
    bne 1b

ready:
    movs r0, #0
    str r0, [r3, #SSIENR]
    ldr r0, =((2 << 21) | (31 << 16) | (3 << 8)) /* four lines, 32 bits, read */
    str r0, [r3, #CTRLR0]
    movs r0, #0
    str r0, [r3, #CTRLR1]
    /* Command on one line, 32 bits of address and mode on four, 4 cycles of waiting. */
    ldr r0, =((4 << 11) | (2 << 8) | (8 << 2) | 1)
    ldr r1, =0x180000f4         /* SPI_CTRLR0 */
    str r0, [r1]
    movs r0, #1
    str r0, [r3, #SSIENR]
    movs r0, #0xeb
    str r0, [r3, #DR0]
    movs r0, #0xa0
    str r0, [r3, #DR0]
    bl wait
    movs r0, #0
    str r0, [r3, #SSIENR]
    ldr r0, =((0xa0 << 24) | (4 << 11) | (8 << 2) | 2) /* address and mode alone */
    str r0, [r1]
    movs r0, #1
    str r0, [r3, #SSIENR]

    ldr r0, =0x10000100         /* the program's vectors */
    ldr r1, =0xe000ed08
    str r0, [r1]
    ldmia r0, {r0, r1}
    msr msp, r0
    bx r1

/* Wait until all is sent and received; uses r2, r4. */
    .thumb_func
wait:
    ldr r2, [r3, #SR]
    movs r4, #4                 /* TFE */
    tst r2, r4
    beq wait
    movs r4, #1                 /* BUSY */
    tst r2, r4
    bne wait
    bx lr

/* Return the byte that command r0 reads; uses r5. */
    .thumb_func
status:
    mov r5, lr
    str r0, [r3, #DR0]
    str r0, [r3, #DR0]
    bl wait
    ldr r0, [r3, #DR0]
    ldr r0, [r3, #DR0]
    bx r5

    .ltorg
