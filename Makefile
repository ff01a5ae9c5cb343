# svc-ingest. `make dev` runs the whole system here; `make test` checks everything.

CARGO ?= cargo

.PHONY: help dev test fmt lint unit attack chaos bench bench-quick deps clean

help:  ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## *' '{printf "  make %-12s %s\n", $$1, $$2}'

dev: deps  ## Run the real thing on this machine, with a PostgreSQL of its own
	$(CARGO) build --locked --bin svc-ingest
	@exec target/debug/svc-ingest dev

test: deps fmt lint unit  ## Formatting, lints and all tests (under 15 minutes on 2 cores)

fmt:
	$(CARGO) fmt --all --check

lint:
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings

unit:
	$(CARGO) test --locked --workspace

attack: deps  ## Slow clients and HTTP/2 floods at full length (about 10 minutes)
	$(CARGO) test --locked --profile strict -p svc-ingest --test attack -- --include-ignored --nocapture --test-threads=1

chaos: deps  ## Strict figures: faults of instances, database and network, races, storms (about 15 minutes)
	$(CARGO) test --locked --profile strict -p svc-ingest --test chaos -- --include-ignored --nocapture --test-threads=1

bench: deps  ## What the service costs, at full size (takes long); BENCH="--only rss,pace" runs some stages
	$(CARGO) build --locked --release -p svc-ingest -p svc-fleet
	target/release/svc-fleet bench $(BENCH); held=$$?; target/release/svc-fleet render && exit $$held

bench-quick: deps  ## The same, small and in minutes: fails only when grossly off
	$(CARGO) build --locked --release -p svc-ingest -p svc-fleet
	target/release/svc-fleet bench --quick --name quick $(BENCH)

deps:  ## Install PostgreSQL's server programs and nats-server, if missing
	@scripts/deps

clean:  ## Remove what was built (not what `make dev` keeps)
	$(CARGO) clean
