# Everything a contributor runs. `make` alone lists it.

GO       ?= go
SHELL    := /bin/bash
VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
BIN      := $(CURDIR)/bin/perigee
# The tools have a module of their own, so that their dependencies are not the server's.
BUF       = $(GO) tool -modfile=tools/go.mod buf
GOLANGCI  = $(GO) tool -modfile=$(CURDIR)/tools/go.mod golangci-lint
GOFUMPT   = $(GO) tool -modfile=tools/go.mod gofumpt
# The Go modules of the repository, in so far as they are there.
MODULES  := $(patsubst %/go.mod,%,$(wildcard ./go.mod tools/go.mod sdktest/go.mod bench/go.mod))
CODE     := $(filter-out tools,$(MODULES))
IMAGE    := proto/descriptors.binpb

# Set to 1 to leave out what takes long.
SHORT    ?=
# Packages that test and race leave out, separated by spaces: WITHOUT="internal/torture".
WITHOUT  ?=
PACKAGES  = $(if $(strip $(WITHOUT)),$$($(GO) list ./... | grep -v $(patsubst %,-e '/%$$',$(WITHOUT))),./...)
# Time for each fuzz target, or a number of inputs as 3000x.
FUZZTIME ?= 10s
# How often the crash test kills the server.
KILLS    ?= 20
# How many histories with faults the torture test simulates in each flush mode.
HISTORIES ?= $(if $(SHORT),100,5000)
# How often `make churn` lets 200 clients come and go.
CHURN    ?= 100
# How many bare connections `make churn` makes after that.
CONNECTS ?= 1000000
# How long `make scale` has a server in 512 MiB and one processor under a steady load.
SMALL    ?= 1m
# Set to 1 to run the SDKs against a router, two store nodes and a proxy in processes of their
# own; to netns for three routers, three store nodes and two proxies with a host for each.
TIERS    ?=
# The SDKs that `make sdktest` runs; all without it.
LANGUAGES ?=
# Arguments of `make run` and `make bench`.
ARGS     ?=

.DEFAULT_GOAL := help
.PHONY: help build run generate fmt lint test race etcdtest fuzz sdktest sdktest-integrations bench bench-peers benchmarks crashtest clustertest torture planted churn scale check-generate check-tidy clean

help: ## Show the targets.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-20s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## Build bin/perigee, statically linked.
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w -X main.version=$(VERSION)' -o $(BIN) ./cmd/perigee

run: build ## Run a standalone server with its data in perigee-data (ARGS=...).
	exec bin/perigee standalone --data-dir perigee-data $(ARGS)

generate: ## Generate gen/ and the descriptor image from proto/.
	$(call generate-into,.)

# generate-into DIR: the one place that says how code is generated.
define generate-into
	$(BUF) generate -o $(1)
	$(BUF) build --path proto/apache --as-file-descriptor-set --exclude-source-info -o $(1)/$(IMAGE)
endef

fmt: ## Format Go and proto files.
	$(GOFUMPT) -w .
	$(BUF) format -w

lint: ## Check format, go vet, golangci-lint and buf lint.
	@unformatted="$$($(GOFUMPT) -l .)"; \
	if [ -n "$$unformatted" ]; then echo "not formatted; run make fmt:"; echo "$$unformatted"; exit 1; fi
	@set -e; for module in $(CODE); do \
		echo "$$module: go vet, golangci-lint"; \
		(cd $$module && $(GO) vet ./... && $(GOLANGCI) run --config $(CURDIR)/.golangci.yml ./...); \
	done
	$(BUF) lint
	$(BUF) format --diff --exit-code

test: ## Run the tests, those of bench/ too (SHORT=1 for the quick ones).
	$(GO) test -timeout 20m $(if $(SHORT),-short) $(PACKAGES)
	cd bench && $(GO) test $(if $(SHORT),-short) ./...

# One thread runs Go code: two timers of one testing/synctest bubble that fire on two
# threads at once share a context of the race detector (Go 1.26), whose runtime dies of it.
# The detector goes by what is ordered before what, and needs no two threads for that.
race: ## Run the tests with the race detector (SHORT=1 for the quick ones).
	CGO_ENABLED=1 $(GO) test -race -cpu 1 -timeout 20m $(if $(SHORT),-short) $(PACKAGES)

etcdtest: ## Run routers over a real etcd, which must be in PATH (the package etcd-server).
	@command -v etcd >/dev/null || { echo "no etcd in PATH"; exit 1; }
	$(GO) test ./router/etcd ./internal/node -run 'Etcd|ARealWatch' -v -count=1 -timeout 10m

fuzz: ## Run every fuzz target for FUZZTIME each.
	@set -e -o pipefail; \
	targets="$$($(GO) test -list '^Fuzz' ./... | awk '/^Fuzz/ { names[n++] = $$1 } \
		$$1 == "ok" { for (i = 0; i < n; i++) print $$2, names[i]; n = 0 }')"; \
	while read -r package target; do \
		[ -n "$$target" ] || continue; \
		echo "$$package $$target"; \
		$(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) "$$package" </dev/null; \
	done <<<"$$targets"

sdktest: build ## Run every official SDK against bin/perigee and write docs/sdk-matrix.md (SHORT=1 for the quick tests, TIERS=1 for a deployment in several processes, TIERS=netns for one with a host for each, LANGUAGES="java go"; these write nothing).
	$(if $(filter netns,$(TIERS)),sdktest/hosts.sh) $(MAKE) --no-print-directory sdks

.PHONY: sdks
sdks:
	cd sdktest && PERIGEE_BIN=$(BIN) $(GO) run ./matrix $(if $(SHORT),-short) $(if $(TIERS),-tiers) $(if $(LANGUAGES),-languages "$(LANGUAGES)") \
		$(if $(SHORT)$(TIERS)$(LANGUAGES),,-out ../docs/sdk-matrix.md -command "make sdktest")

sdktest-integrations: build ## Run what is built on the SDKs: the Spring Boot starter, the OpenTelemetry agent.
	cd sdktest && PERIGEE_BIN=$(BIN) $(GO) run ./matrix -integrations

bench: build ## Measure bin/perigee (ARGS=...; -lites 0 -delays 0 leaves out what takes minutes).
	cd bench && PERIGEE_BIN=$(BIN) $(GO) run . $(ARGS)

bench-peers: build ## Measure bin/perigee beside other queues, which it installs, and write docs/performance.md (18 minutes; SHORT=1: 3, into bin/performance; ARGS=...).
	cd bench && $(GO) build -o $(CURDIR)/bin/bench . && PERIGEE_BIN=$(BIN) $(CURDIR)/bin/bench peers -cache $(CURDIR)/bin/peers \
		$(if $(SHORT),-short -out $(CURDIR)/bin/performance,-out $(CURDIR)/docs) $(ARGS)

benchmarks: ## Run every Go benchmark once, to see that they still do.
	$(GO) test -run '^$$' -bench . -benchtime 1x -timeout 20m ./...

clustertest: KILLS = $(if $(SHORT),4,20)
clustertest: build ## Kill KILLS proxies and store nodes of a deployment, and its router, under load, and spoil its network; one table.
	@results="$$(mktemp)"; trap 'rm -f "$$results"' EXIT; export PERIGEE_RESULTS="$$results"; status=0; \
	PERIGEE_BIN=$(BIN) PERIGEE_KILLS=$(KILLS) PERIGEE_DEPLOYMENT=1 $(GO) test ./internal/crashtest -run 'ADeployment|HostsThat|AStoreNodeThatIsKilled' -count=1 -timeout 30m $(if $(SHORT),-short) || status=1; \
	echo; $(GO) run ./internal/torture "$$results" || status=1; exit $$status

crashtest: build ## Kill the server KILLS times under load and check what it had acknowledged.
	PERIGEE_BIN=$(BIN) PERIGEE_KILLS=$(KILLS) $(GO) test ./internal/crashtest -v -run Killed -count=1 -timeout 30m

torture: KILLS = $(if $(SHORT),3,100)
torture: build ## Simulate HISTORIES with faults, fail and damage everything, kill the server KILLS times in each mode, plant a few bugs; one table.
	@results="$$(mktemp)"; trap 'rm -f "$$results"' EXIT; export PERIGEE_RESULTS="$$results"; status=0; \
	PERIGEE_BIN=$(BIN) PERIGEE_HISTORIES=$(HISTORIES) $(if $(SHORT),,PERIGEE_FAULTS=all PERIGEE_DAMAGE=all) \
		$(GO) test ./internal/torture/... -count=1 -timeout 60m || status=1; \
	PERIGEE_BIN=$(BIN) PERIGEE_KILLS=$(KILLS) PERIGEE_CALM=$(if $(SHORT),2,30) PERIGEE_REPLAY_MIB=$(if $(SHORT),16,200) \
		$(GO) test ./internal/crashtest -skip ADeployment -count=1 -timeout 60m || status=1; \
	$(GO) run ./internal/torture/planted -short || status=1; \
	echo; $(GO) run ./internal/torture "$$results" || status=1; exit $$status

planted: ## Break the rules one at a time and see that the checkers find each (SHORT=1 for a few, ARGS="-v -run NAME").
	$(GO) run ./internal/torture/planted $(if $(SHORT),-short) $(ARGS)

churn: build ## Let clients come and go for CHURN rounds, and CONNECTS bare connections, and check what the process keeps of them.
	PERIGEE_BIN=$(BIN) PERIGEE_CHURN=$(CHURN) PERIGEE_CONNECTS=$(CONNECTS) $(GO) test ./internal/crashtest -v -run 'LeaveTheProcessAsItWas' -count=1 -timeout 60m

scale: build ## Measure backlogs, leases, waiting receives, topics, memory and a small container at size (minutes, 4 GB of disk; ARGS="-run SmallContainer" SMALL=1h).
	CGO_ENABLED=0 PERIGEE_BIN=$(BIN) PERIGEE_SCALE=full PERIGEE_SMALL=$(SMALL) $(GO) test ./internal/scaletest -v -count=1 -timeout 3h $(ARGS)

check-generate: ## Check that gen/ and the descriptor image are what `make generate` makes.
	@set -e; fresh="$$(mktemp -d)"; trap 'rm -rf "$$fresh"' EXIT; mkdir "$$fresh/proto"; \
	$(MAKE) --no-print-directory generate-fresh FRESH="$$fresh"; \
	diff -r "$$fresh/gen" gen && cmp "$$fresh/$(IMAGE)" $(IMAGE) || \
		{ echo "run make generate and commit the result"; exit 1; }

.PHONY: generate-fresh
generate-fresh:
	$(call generate-into,$(FRESH))

check-tidy: ## Check that go.mod and go.sum of every module are tidy.
	@set -e; for module in $(MODULES); do echo "$$module: go mod tidy"; (cd $$module && $(GO) mod tidy -diff); done

clean: ## Remove what the other targets built.
	rm -rf bin sdktest/node/node_modules sdktest/java/target sdktest/spring/target
