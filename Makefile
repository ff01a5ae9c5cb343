# svc-ingest. `make dev` runs the whole system here; `make test` checks everything.

CARGO ?= cargo

.PHONY: help dev test fmt lint unit attack chaos bench-agent deps clean

help:  ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## *' '{printf "  make %-12s %s\n", $$1, $$2}'

dev: deps  ## Run the real thing on this machine, with a PostgreSQL of its own
	$(CARGO) build --locked --bin svc-ingest --bin svc-agent
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
	$(CARGO) test --locked --profile strict -p svc-agent --test it -- --ignored --nocapture --test-threads=1

bench-agent: deps  ## What a running agent costs: memory, processor, threads, disk (about 2 minutes)
	$(CARGO) test --locked --profile strict -p svc-agent --test cost -- --include-ignored --nocapture

deps:  ## Install PostgreSQL's server programs and nats-server, if missing
	@scripts/deps

clean:  ## Remove what was built (not what `make dev` keeps)
	$(CARGO) clean
