# The short way to everything; each target is a script that can also be run by itself.

.DEFAULT_GOAL := help
.PHONY: help demo demo-stop test test-full test-system test-zfs fuzz fuzz-api bench bench-zfs release lint fmt docs ci

CARGO := PATH="$${CARGO_HOME:-$$HOME/.cargo}/bin:$$PATH" cargo
BINARIES := -p muster-agent -p muster-coordinator -p muster-cli

help: ## Shows this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | awk -F'\t' '{printf "  make %-12s %s\n", $$1, $$2}'

demo: ## Starts a coordinator and an agent here and boots a real virtual machine
	@scripts/demo.sh start

demo-stop: ## Ends everything that `make demo` started
	@scripts/demo.sh stop

test: ## Builds and runs every test
	@scripts/test.sh

fuzz: ## Feeds the readers of foreign input with generated ones (FUZZ_SECONDS each, 300)
	@scripts/fuzz.sh

fuzz-api: ## Drives every operation of the API with generated requests
	@scripts/setup.sh test
	@$(CARGO) build --locked --workspace --all-targets
	@scripts/fuzz-api.sh 200

test-full: ## The same with more simulated seeds
	@scripts/test.sh --full

test-system: ## Builds a full Debian guest and tests units, limits and a reboot in it
	@scripts/test-system.sh

test-zfs: ## Builds the same guest with OpenZFS and tests real pools in it
	@scripts/test-zfs.sh

bench: ## Measures speed and memory, beside the goals (optimized build)
	@scripts/setup.sh test
	@scripts/build-guest-image.sh
	@$(CARGO) build --release --locked --workspace --bins
	@target/release/bench

bench-zfs: ## Measures creates on ZFS clones, in the guest of `make test-zfs` (optimized build)
	@scripts/test-guest.sh bench-zfs

release: ## Builds the three binaries into target/release/
	@scripts/setup.sh demo
	@$(CARGO) build --release --locked $(BINARIES)
	@ls -l target/release/muster target/release/muster-agent target/release/muster-coordinator

lint: ## Format, clippy, licences
	@scripts/setup.sh ci
	@$(CARGO) fmt --all --check
	@$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	@$(CARGO) deny check bans licenses sources

fmt: ## Formats the code
	@$(CARGO) fmt --all

docs: ## Writes the generated pages under docs/ again
	@MUSTER_WRITE_DOCS=1 $(CARGO) nextest run --workspace -E 'test(/documented/) + test(page::) + test(/^documentation::/)'

ci: ## What continuous integration runs
	@.ci/run
