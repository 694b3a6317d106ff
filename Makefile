# What can be done with a checkout. `make` alone lists it.
CARGO ?= cargo
ZFOLIO := target/release/zfolio

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 16

demo: ## a python3 program that wants 1.2 GiB, alone and in 256 MiB: about a minute after the build
	@tools/setup demo
	@tools/demo

test: ## everything that must hold: format, lints, tests, real programs, a minute of torture
	@tools/setup test
	@tools/check

build: ## target/release/zfolio: one file, to be copied anywhere (what debuggers read is beside it, in zfolio.debug)
	$(CARGO) build --release --package zfolio
	@tools/strip $(ZFOLIO)

install: build ## to /usr/local (or PREFIX=...): the command, zfolio.h and its manual page
	install -D -m 755 $(ZFOLIO) $(or $(PREFIX),/usr/local)/bin/zfolio
	install -D -m 644 include/zfolio.h $(or $(PREFIX),/usr/local)/include/zfolio.h
	install -D -m 644 docs/man/zfolio.3 $(or $(PREFIX),/usr/local)/share/man/man3/zfolio.3

programs: build ## the real programs at full size: 1 GiB and more each
	ZFOLIO_SIZE=full ZFOLIO_BIN=$(CURDIR)/$(ZFOLIO) $(CARGO) test --package zfolio --test programs

torture: build ## ten minutes of torture (SECONDS=600 SEED=1)
	tools/torture $(or $(SECONDS),600) $(or $(SEED),1)

kernels: build ## Debian's own kernels, 6.12 and the newest, in an emulated machine: some ten minutes (SECONDS=60 SEED=1)
	@tools/setup kernels
	SECONDS_EACH=$(or $(SECONDS),60) SEED=$(or $(SEED),1) tools/kernels

zram: build ## compressed block devices: a machine that swaps to one, a disk of a kernel by ublk, and a file system by nbdfuse
	@tools/setup zram
	tools/zram-guest
	tools/zram-files

suites: build ## public test suites (CPython, stress-ng, redis) without and with zfolio, case by case (SUITES="redis stress-ng")
	@tools/setup suites
	tools/suites $(SUITES)

soak: torture programs ## both

fuzz: ## hostile input for decompressors and devices, an hour in all (SECONDS=3600; needs nightly Rust and g++)
	nice -n 19 tools/fuzz $(or $(SECONDS),3600)

miri: ## what holds raw memory, under the interpreter that finds undefined behaviour (needs nightly Rust with miri)
	nice -n 19 tools/miri

bench: build ## against the kernel's own zswap, in one run
	bench/run

bench-build: build ## a build with 4 to 16 jobs over swap areas, against zswap and the kernel's swap file
	bench/build

bench-swapped: build ## real programs in parts of their memory over a swap area, against the kernel's swap file
	bench/swapped

bench-zram: build ## compressed block devices: by NBD against nbdkit's, and without a transport against the kernel's
	bench/zram

bench-programs: build ## real programs at 3/4 and 1/2 of their memory, against the kernel's swap, zswap and zram
	bench/programs

bench-traces: ## policies on recorded traces: what each would cost (replay record makes more of them)
	$(CARGO) run --quiet --release --package replay -- run crates/replay/traces/*/*.trace

deny: ## licences and sources of the dependencies (needs cargo-deny)
	$(CARGO) deny --all-features check

fmt: ## formats the Rust code
	$(CARGO) fmt --all

clean: ## removes what was built
	$(CARGO) clean

.PHONY: help demo test build install programs torture kernels zram suites soak fuzz miri bench bench-build bench-swapped \
	bench-zram bench-programs bench-traces deny fmt clean
