# Every target works here and, with the same name, in each client's folder.
CARGO ?= cargo
CLIENTS := $(wildcard clients/*/Makefile)
# A registry may not answer for a moment.
export CARGO_NET_RETRY ?= 10
# Where scripts/install-test-deps.sh puts the runner of Rust tests.
export PATH := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/weir/bin:$(PATH)

.PHONY: run run-fleet build page dist test test-packages test-quick check-quick site check nightly bench bench-outputs fuzz miri soak deps

## run: build and start the agent with useful defaults (UDP 127.0.0.1:8125, admin 127.0.0.1:8127)
run: page
	$(CARGO) run --release --locked --bin weir -- run $(ARGS)

## run-fleet: a fleet on this machine: a broker (without Java: a directory), three agents with load, two merges, and the truth beside what is merged (Ctrl-C ends it)
run-fleet: page
	docs/examples/fleet.py $(ARGS)

## page: build the live page, where there is Node; without it the agent says how to
page:
	@if command -v node >/dev/null && command -v npm >/dev/null; then $(MAKE) -C web build; \
	else echo "Node.js is missing (node, npm): the agent is built without its live page; everything else works, and weir top shows metrics at a terminal"; fi

build: page
	$(CARGO) build --release --locked --workspace

## dist: everything that is given away, into dist/ (docs/install.md)
dist: page
	packaging/dist.sh

## test: install what the tests need, then run every test of every language that is deterministic or waits for an event
test: deps page
	scripts/gate.py test

## nightly: what measures this machine, kills at random instants, builds peers from source, or takes long; before a release, or by hand
nightly: deps page
	scripts/gate.py nightly

## test-packages: make what is given away, and install and run each form of it in a scratch root (root; minutes)
test-packages: deps dist
	packaging/test/binary.sh dist
	packaging/test/deb.sh dist
	packaging/test/rpm.sh dist
	packaging/test/image.sh dist

## test-quick: unit and property tests of the crates without processes, and the command line; little time once it is built
test-quick:
	scripts/gate.py quick

## site: all pages as a static site with search, in dist/site, every link checked (needs cmark-gfm, which `make deps` installs)
site:
	docs/site/build.py $(ARGS)

## check-quick: formatting, repository rules and Rust lints: what needs nothing but Rust and Python
check-quick:
	scripts/gate.py check format prose repository dependencies clippy

## check: format and lint, cheapest first; then changed tests up to 20 times beside busy loops
check:
	scripts/gate.py check

## bench: ratios to the floor of this machine, with their spread; also in results/budget.json (ARGS="--row budget-1k --runs 9")
bench:
	$(CARGO) build --release --locked -p weir -p weir-bench
	mkdir -p results
	"$${CARGO_TARGET_DIR:-target}/release/weir-bench" budget --json results/budget.json $(ARGS)

## bench-outputs: CPU and bytes per series of every output, 100,000 contexts
bench-outputs:
	rig/scripts/bench-outputs.sh

## fuzz: extend the corpora (nightly toolchain and cargo-fuzz), 60 s per target unless SECONDS_PER_TARGET is set
fuzz:
	scripts/fuzz.sh

## miri: what the compiler cannot check of the unsafe code on every processor's level (nightly toolchain with Miri)
miri:
	scripts/miri.sh

## soak: bounded long runs: the nightly tests, churn, in which memory must stay flat, and hand-overs and kills in a row
soak: nightly
	rig/scripts/soak.sh

## deps: what the tests need beyond the toolchains, from Debian's packages
deps:
	scripts/install-test-deps.sh
