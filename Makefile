# Every target works here and, with the same name, in each client's folder.
CARGO ?= cargo
CLIENTS := $(wildcard clients/*/Makefile)
# The parts in other languages.
PARTS := $(CLIENTS) web/Makefile
# A registry may not answer for a moment.
export CARGO_NET_RETRY ?= 10
# Features that tests need and a default build lacks.
FEATURES = weir/kafka
# The clients' tests use the agent that the Rust tests built: a separate build would select other features and compile most
# dependencies again.
AGENT = $(abspath $(or $(CARGO_TARGET_DIR),target))/debug/weir

.PHONY: run run-fleet build page dist test test-packages test-quick check bench bench-outputs fuzz miri soak deps clients-%

## run: build and start the agent with useful defaults (UDP 127.0.0.1:8125, admin 127.0.0.1:8127)
run: page
	$(CARGO) run --release --locked --bin weir -- run $(ARGS)

## run-fleet: a fleet on this machine: a broker (without Java: a directory), three agents with load, two merges, and the truth beside what is merged (Ctrl-C ends it)
run-fleet: page
	examples/fleet.py $(ARGS)

## page: build the live page, where there is Node; without it the agent says how to
page:
	@if command -v npm >/dev/null; then $(MAKE) -C web build; else echo "no npm: the agent is built without its live page"; fi

build: page
	$(CARGO) build --release --locked --workspace

## dist: everything that is given away, into dist/ (docs/install.md)
dist: page
	packaging/dist.sh

## test: install what the tests need, then run every test of every language
test: deps page
	$(CARGO) test --workspace --features $(FEATURES) --locked --no-fail-fast
	packaging/test/units.sh
	WEIR_BIN="$${WEIR_BIN:-$$(ls $(AGENT))}" packaging/test/chart.sh
	packaging/test/packed.sh "$${WEIR_BIN:-$$(ls $(AGENT))}"
	@set -e; for m in $(PARTS); do WEIR_BIN="$${WEIR_BIN:-$$(ls $(AGENT))}" $(MAKE) -C $$(dirname $$m) test; done

## test-packages: make what is given away, and install and run each form of it in a scratch root (root; minutes)
test-packages: deps dist
	packaging/test/binary.sh dist
	packaging/test/deb.sh dist
	packaging/test/rpm.sh dist
	packaging/test/image.sh dist

## test-quick: what needs nothing but Rust, and little time once it is built
test-quick:
	$(CARGO) test --workspace --locked --lib --bins --test vectors --test properties --test find --test oracle \
	  --test memory --test workers --test command_line

## check: format and lint, cheapest first
check: deps
	$(CARGO) fmt --all --check
	scripts/check-repository.sh
	scripts/check-prose.py
	scripts/check-dependencies.py
	@set -e; for m in $(PARTS); do $(MAKE) -C $$(dirname $$m) check; done
	$(CARGO) clippy --workspace --features $(FEATURES) --all-targets --locked -- -D warnings

## bench: ratios against the floor of this machine, with their spread
bench:
	scripts/bench.sh $(ARGS)

## bench-outputs: CPU and bytes per series of every output, 100,000 contexts
bench-outputs:
	scripts/bench-outputs.sh

## fuzz: extend the corpora (nightly toolchain and cargo-fuzz), 60 s per target unless SECONDS_PER_TARGET is set
fuzz:
	scripts/fuzz.sh

## miri: what the compiler cannot check of the unsafe code on every processor's level (nightly toolchain with Miri)
miri:
	scripts/miri.sh

## soak: bounded long runs: churn, in which memory must stay flat, and hand-overs and kills in a row
soak:
	scripts/soak.sh
	scripts/soak-restarts.sh

## deps: what the tests need beyond the toolchains, from Debian's packages
deps:
	scripts/install-test-deps.sh
