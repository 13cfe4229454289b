.code16
.org 0
start:
  xorw %bx,%bx
  movw $1000,%si
outer:
  xorw %cx,%cx
inner:
  addw %cx,%bx
  decw %cx
  jnz inner
  addw %si,%bx
  outb %al,$0x80
  decw %si
  jnz outer
  movb %bl,%al
  outb %al,$0xf4
halt:
  hlt
  jmp halt
.org 0xfff0
  .byte 0xe9
  .word start - . - 2
.org 0x10000
