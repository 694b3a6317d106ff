// A library with 8 MiB of addresses, each of which the loader looks up: it is at that for a tenth of a second.
int one, two;
asm(".data\n.balign 8\ntable:\n.rept 524288\n.quad one, two\n.endr\n.text\n");
