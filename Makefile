# svc-ingest. `make dev` runs the whole system here; `make test` checks everything.

CARGO ?= cargo

.PHONY: help dev test fmt lint doc unit attack chaos plans sizing bench bench-quick bench-agent bench-console deps clean

help:  ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## *' '{printf "  make %-16s %s\n", $$1, $$2}'

dev: deps  ## Run the real thing on this machine, with a PostgreSQL of its own
	$(CARGO) build --locked --bin svc-dev --bin svc-ingest --bin svc-agent --bin svc-console
	@exec target/debug/svc-dev

test: deps fmt lint doc chart unit  ## Formatting, lints, documentation, chart and all tests

fmt:
	$(CARGO) fmt --all --check

lint:
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings

doc: export RUSTDOCFLAGS = -D warnings
doc:
	$(CARGO) doc --locked --workspace --no-deps

# More tests at once than there are cores, and two binaries: most tests wait for servers most of the time.
unit: export RUST_TEST_THREADS ?= 4
unit:
	$(CARGO) test --locked --workspace --no-run
	@$(MAKE) --no-print-directory -j2 unit-tests integration-tests

.PHONY: unit-tests integration-tests
unit-tests:
	$(CARGO) test --locked --workspace --lib --bins
	$(CARGO) test --locked --workspace --doc

integration-tests:
	$(CARGO) test --locked --workspace --test '*'

attack: deps  ## Slow clients and HTTP/2 floods at full length (about 15 minutes)
	$(CARGO) test --locked --profile strict -p svc-admin --test attack -- --include-ignored --nocapture --test-threads=1

# Most tests wait most of the time and run three at once; those in `alone` need the whole machine.
chaos: deps  ## Strict figures: faults of instances, database and network, races, storms (about 45 minutes)
	$(CARGO) test --locked --profile strict -p svc-admin --test chaos -- --include-ignored --nocapture --test-threads=3 --skip alone::
	$(CARGO) test --locked --profile strict -p svc-admin --test chaos -- --include-ignored --nocapture --test-threads=1 alone::
	$(CARGO) test --locked --profile strict -p svc-admin --test it -- --ignored --nocapture a_hundred_times
	$(CARGO) test --locked --profile strict -p svc-agent --lib -- --ignored --nocapture
	$(CARGO) test --locked --profile strict -p svc-agent --test it -- --ignored --nocapture --test-threads=1 addresses:: connection::
	$(CARGO) test --locked -p svc-agent --test it -- --ignored --nocapture updates::an_agent_that_is_killed
	$(CARGO) test --locked -p svc-agent --test it -- --ignored --nocapture keys::an_agent_that_is_killed
	$(CARGO) test --locked --profile strict -p svc-fleet --test it -- --ignored --nocapture

bench-agent: deps  ## What a running agent costs: memory, processor, threads, disk (about 2 minutes)
	$(CARGO) test --locked --profile strict -p svc-agent --test it -- cost --ignored --nocapture

.PHONY: fuzz-agent test-root deb test-deb static install-agent

# Only root may mount file systems and give folders away, so `make unit` counts these tests as ignored. The whole workspace is named
# because nothing is compiled again then.
test-root:  ## The agent's tests that need root: full, read-only, stalled and hung disks, folders of other users
	$(CARGO) test --locked --workspace --test it -- --ignored disks:: hung_mounts:: commands::root_ updates::root_
ifeq ($(shell id -u),0)
test: test-root
endif

fuzz-agent:  ## The agent's spool against its model, noise and kill -9 before every call (about 10 minutes)
	PROPTEST_CASES=$${PROPTEST_CASES:-10000} $(CARGO) test --locked --profile strict -p svc-agent --lib spool::
	$(CARGO) test --locked --profile strict -p svc-agent --test machine -- --ignored --nocapture killed::

# The binaries, the manual and the notices of all packages. BINARIES names a folder with others, static ones for example.
.PHONY: programs deb rpm packages repo lintian
programs: export SVC_VERSION = $(shell scripts/version)
programs:
ifndef BINARIES
	$(CARGO) build --locked --release --bin svc-ingest --bin svc-agent --bin svc-console
endif
	$(CARGO) run --locked --quiet --bin svc-manual -- target/manual
	@scripts/notices

deb: programs  ## Debian packages of service, console and agent, in target/deb
	@scripts/deb

rpm: programs  ## RPM packages of the same, in target/rpm
	@scripts/rpm

packages: deb rpm lintian  ## All packages, checked with lintian

lintian:
	lintian --fail-on error,warning --info target/deb/*.deb

repo:  ## apt and dnf repositories with signed metadata, in target/repo (REPO_KEY=<gpg key>; after `make packages`)
	@scripts/repo

test-deb:  ## Install, run, remove and purge the packages in a Debian of their own (as root; after `make deb`; see scripts/test-deb)
	@scripts/test-deb

test-rpm:  ## Install, upgrade and remove the RPM packages in a root of their own (as root; after `make rpm`; see scripts/test-rpm)
	@scripts/test-rpm

test-readme:  ## Run the README's production path, line by line, in a fresh Debian (as root; after `make deb`)
	@scripts/test-readme

test-export: deps  ## Export to the OTLP receiver of the OpenTelemetry collector (needs Go)
	cd crates/admin/tests/otlp_receiver && go build -o $(CURDIR)/target/otlp-receiver .
	OTLP_RECEIVER=$(CURDIR)/target/otlp-receiver $(CARGO) test --locked -p svc-admin --test it -- export:: --include-ignored

.PHONY: ha
ha: deps  ## Three machines on one, broken in twelve ways: Patroni, NATS, HAProxy and a fleet with ledgers (Debian 12)
	$(CARGO) build --locked --profile $(or $(PROFILE),release) --bin svc-ingest --bin svc-console --bin svc-fleet
	BIN=$(CURDIR)/target/$(or $(PROFILE),release) scripts/ha $(DRILLS)

.PHONY: test-readme test-rpm test-export deny check-deploy images
deny:  ## Advisories, licences, bans and sources of all dependencies (needs cargo-deny and the advisory database)
	$(CARGO) deny check

.PHONY: chart
chart:
	@if command -v helm >/dev/null; then SKIP="kubeconform docker haproxy" deploy/check; else echo "helm is not installed: the chart is not checked"; fi

check-deploy:  ## Check the Helm chart, the compose file and the proxies' configurations (needs helm and kubeconform)
	@deploy/check

images:  ## Container images of service, console and agent (needs buildah; after `make static`)
	@deploy/images

.PHONY: release
release:  ## All of a release in target/dist: static tarballs, packages, bills of materials, checksums; signed with SVC_SIGNING_KEY=<file> (needs rpmbuild and jq)
	@scripts/release

static:  ## Static binaries for any Linux, x86_64 and aarch64, in target/static; STATIC=svc-agent builds some
	@scripts/static $(STATIC)

install-agent:  ## Install the agent from this tree (PREFIX, SYSCONFDIR and DESTDIR are respected)
	$(CARGO) build --locked --release --bin svc-agent
	@scripts/install-agent

bench-console: deps  ## Pages, searches and live viewers of the console with 200,000 hosts (takes long; BENCH_HOSTS=2000 tries it)
	$(CARGO) test --locked --profile strict -p svc-console --test it -- scale --ignored --nocapture --test-threads=1

plans: deps  ## The web application's queries on 100,000 hosts, with their plans (about 5 minutes)
	$(CARGO) test --locked -p svc-store --test it -- plans --include-ignored --nocapture --test-threads=1

sizing: deps  ## What agents cost PostgreSQL: the figures of docs/sizing.md (minutes)
	$(CARGO) test --locked --profile strict -p svc-store --test it -- sizing --include-ignored --nocapture
	$(CARGO) test --locked --profile strict -p svc-admin --test chaos -- memory --include-ignored --nocapture

bench: deps  ## What the service costs, at full size (takes long); BENCH="--only rss,pace" runs some stages
	$(CARGO) build --locked --release -p svc-admin -p svc-fleet
	target/release/svc-fleet bench $(BENCH); held=$$?; target/release/svc-fleet render && exit $$held

bench-quick: QUICK = --only rss,pace,saturate,enrol,storm
bench-quick: deps  ## The same, small and in minutes: fails only when grossly off
	$(CARGO) build --locked --release -p svc-admin -p svc-fleet
	target/release/svc-fleet bench --divide 4 --name quick $(or $(BENCH),$(QUICK))

deps:  ## Install the servers and tools that the tests start, if missing (scripts/deps lists them)
	@scripts/deps

clean:  ## Remove what was built (not what `make dev` keeps)
	$(CARGO) clean
