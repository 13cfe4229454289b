# A system of one disk sector whose only business is its power button: it says that it is up, waits
# for a real ACPI event, takes its time and powers off. It is up as soon as the firmware is, also
# where a virtual machine runs inside an emulated one.
#
# With BUSY it waits without rest, so that it uses as much of a CPU as it is given.
#
# The registers are those of the power management block of ICH9, where SeaBIOS puts them.
    .code16
    .set PM1_STATUS, 0x600
    .set PM1_ENABLE, 0x602
    .set PM1_CONTROL, 0x604
    .set POWER_BUTTON, 0x100
    .set SLEEP_NOW, 0x2000         # of type 0, which is "soft off" here
    .set LOADED_AT, 0x7c00
start:
    cli
    xorw %ax, %ax
    movw %ax, %ds
    movw %ax, %ss
    movw $LOADED_AT, %sp
    cld
    movw $(LOADED_AT + up - start), %si
    call print
    movw $PM1_ENABLE, %dx
    movw $POWER_BUTTON, %ax
    outw %ax, %dx
    sti
1:
    .ifndef BUSY
    hlt                            # until the timer's next tick, 18.2 a second
    .endif
    movw $PM1_STATUS, %dx
    inw %dx, %ax
    testw $POWER_BUTTON, %ax
    jz 1b
    movw $PM1_ENABLE, %dx
    xorw %ax, %ax
    outw %ax, %dx
    movw $(LOADED_AT + pressed - start), %si
    call print
    movw (LOADED_AT + ticks - start), %cx
2:  hlt
    loop 2b
    movw $(LOADED_AT + off - start), %si
    call print
    movw $PM1_CONTROL, %dx
    movw $SLEEP_NOW, %ax
    outw %ax, %dx
3:  hlt
    jmp 3b
print:
    lodsb
    testb %al, %al
    jz 5f
    movb %al, %bl
    movw $0x3fd, %dx               # first serial line: ready for a character?
4:  inb %dx, %al
    testb $0x20, %al
    jz 4b
    movb %bl, %al
    movw $0x3f8, %dx
    outb %al, %dx
    jmp print
5:  ret
up:      .asciz "button: up\n"
pressed: .asciz "button: pressed\n"
off:     .asciz "button: off\n"
    .org 508
ticks:   .word 55                  # 3 s between the press and the end
    .byte 0x55, 0xaa               # this sector can be booted
