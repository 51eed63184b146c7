# The commands of this project, for people and for continuous integration. `make help` lists them.
#
# Everything that is built or installed goes to .build/ and bin/, which git ignores. Nothing needs root.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:
MAKEFLAGS += --no-print-directory

JOBS ?= 2
PORT ?= 8000
FUZZTIME ?= 20s
CHAOS ?= 5m
TOOLS := .build/tools

# The rules of the source and the tests with real peers, clients and agents run in steps of their own.
UNIT = $$(go list ./... | grep -v -e /tests/arch -e /tests/e2e -e /tests/bench -e /tests/clients -e /tests/agents)

# The revision is stamped into the binaries where there is one.
BUILDVCS = $$(git rev-parse HEAD >/dev/null 2>&1 && echo auto || echo false)

GOLANGCI_VERSION := v2.15.0
GOLANGCI := $(TOOLS)/golangci-lint-$(GOLANGCI_VERSION)/golangci-lint

# need names each program of a list that isn't there, and how to get it.
define need
	missing=0; for tool in $(1); do command -v $$tool >/dev/null && continue; missing=1; case $$tool in \
	  go) echo "missing: go 1.26 or newer. Get it from https://go.dev/dl/" ;; \
	  cargo) echo "missing: cargo (Rust 1.85 or newer). Get it from https://rustup.rs/" ;; \
	  cc|c++) echo "missing: $$tool, a C and C++ compiler. Debian, Ubuntu: apt-get install build-essential. Fedora: dnf install gcc gcc-c++" ;; \
	  cmake) echo "missing: cmake. Debian, Ubuntu: apt-get install cmake. Fedora: dnf install cmake" ;; \
	  python3) echo "missing: python3 with venv. Debian, Ubuntu: apt-get install python3-venv. Fedora: dnf install python3" ;; \
	  *) echo "missing: $$tool" ;; esac; done; [ $$missing = 0 ] || exit 1
endef

# report shows a line per package, the output of failures, and every skipped test with its reason.
REPORT := go run ./tests/report

# step says what begins, and when.
step = @printf '\n── %s ── %s\n' "$(1)" "$$(date +%H:%M:%S)"

.PHONY: help
help: ## This list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: run
run: build ## Build all and serve a simulated model on port 8000 (PORT=…, ARGS="…" for more flags)
	@exec bin/frontend --embedded --http-port $(PORT) $(ARGS)

.PHONY: build
build: native ## Build bin/frontend, bin/simworker and bin/loadgen
	@mkdir -p bin && go build -buildvcs=$(BUILDVCS) -o bin/ ./cmd/...

.PHONY: native
native: ## Build the native library (tokenizers, templates), once per content
	@$(call need,go cargo cc c++ cmake)
	@JOBS=$(JOBS) native/build.sh

.PHONY: test
test: start check fixtures unit measured rust e2e ## Everything CI runs: checks, unit tests with the race detector, native tests, end to end
	$(call step,all passed)

.PHONY: start
start:
	@$(call need,go cargo cc c++ cmake python3 git)
	@command -v npm >/dev/null || echo "skipped: tokenizers of other models and the Node client, which need npm"
	$(call step,native library)
	@$(MAKE) native

.PHONY: check
check: native ## Formatting, go vet, the rules of tests/arch
	$(call step,formatting and go vet)
	@unformatted=$$(git ls-files -co --exclude-standard '*.go' | xargs gofmt -l); \
	  [ -z "$$unformatted" ] || { printf 'not formatted (gofmt -w):\n%s\n' "$$unformatted"; exit 1; }
	@go vet ./... && go vet -tags invariants ./...
	@go test -count=1 -json ./tests/arch | $(REPORT)

.PHONY: fixtures
fixtures: ## Fetch the tokenizers of other models that larger tests use
	$(call step,fixtures)
	@if command -v npm >/dev/null; then tests/fixtures/fetch.sh; else echo "skipped: fixtures need npm"; fi

.PHONY: unit
unit: native ## Unit tests with the race detector and the checks of the tag invariants
	$(call step,unit tests)
	@go test -json -race -tags invariants -p $(JOBS) -timeout 20m $(UNIT) | $(REPORT)

# What the race detector would falsify: these tests skip there.
MEASURED = ^(TestGrownChat|TestGrownChatFast|TestMemoryAfterLoad|TestTokenBudget|TestParsedTokenBudget|TestOpenStreams|TestBigPromptsLeaveOthersAlone)$$

.PHONY: measured
measured: native ## Budgets of time, memory and allocations, without the race detector
	$(call step,budgets)
	@go test -json -count=1 -p 1 -run '$(MEASURED)' ./internal/prepost/tokenizer ./internal/server ./tests/fieldreports | $(REPORT)

.PHONY: race
race: unit ## The same as unit: unit tests always run with the race detector

.PHONY: rust
rust: ## Tests of the native library itself
	$(call step,native tests)
	@$(call need,go cargo cc c++ cmake)
	@native/build.sh cargo test --quiet --release -j $(JOBS)

.PHONY: peers
peers: ## Install Dynamo's own frontend and mocker, a real model, official clients, agents (PORTICO_VENV: use that one)
	$(call step,peers)
	@$(call need,python3 go cc c++ cmake)
	@venv=$$(tests/peers/setup.sh); echo "Dynamo and llama.cpp: $$venv"
	@etcd=$$(tests/etcdserver/build.sh); echo "etcd: $$etcd"
	@clients=$$(tests/clients/setup.sh); echo "the official clients: $$clients"
	@if command -v npm >/dev/null; then tests/agents/setup.sh && tests/agents/claude/setup.sh >/dev/null && echo "agents: .build/agents"; fi

.PHONY: e2e
e2e: build peers ## End to end: real workers over NATS and TCP, file and etcd; the official clients; agents
	$(call step,end to end)
	@go test -json -count=1 -p 1 -timeout 30m ./tests/clients/... ./tests/agents/... ./tests/e2e/... | $(REPORT)

.PHONY: e2e-vllm
e2e-vllm: build fixtures ## Images end to end with a real vLLM worker on the CPU; installs 8 GB the first time, so no part of test
	@venv=$$(tests/e2e/vllm/setup.sh) && PORTICO_VLLM_VENV=$$venv go test -count=1 -timeout 30m -v ./tests/e2e/vllm

.PHONY: bench-mm
bench-mm: build peers ## Images: what processing and handing them over costs, beside vLLM, a Rust crate and Dynamo (PyTorch: 5 GB)
	@venv=$$(tests/bench/images/setup.sh) && crate=$$(tests/bench/images/crate.sh) && \
	  go run ./tests/bench/images -venv "$$venv" -crate "$$crate"
	@go run ./tests/bench/transfer $(ARGS)

.PHONY: chaos
chaos: build peers ## Kill, freeze and restart everything under 200 streams for CHAOS (5m); make e2e does so for half a minute
	$(call step,chaos)
	@PORTICO_CHAOS=$(CHAOS) go test -count=1 -v -timeout 30m ./tests/e2e/chaos

.PHONY: bench-router
bench-router: build peers ## Mode kv: the index and the hashes beside Dynamo's crate, the choice, and both frontends in turns
	@go run ./tests/bench/kvindex $(ARGS)
	@go test -run '^$$' -bench Choose -benchtime 10000x -timeout 2m ./internal/router/kvroute
	@go run ./tests/bench/router

.PHONY: bench
bench: build peers ## Dynamo's frontend and this one against the same mocker, interleaved; prints the ratios
	@go run ./tests/bench $(ARGS)

.PHONY: fuzz
fuzz: native ## Every fuzz target for FUZZTIME (20s each)
	@go list ./... | while read -r package; do \
	  for target in $$(go test -list '^Fuzz' "$$package" | grep '^Fuzz' || true); do \
	    echo "── $$package $$target"; \
	    go test -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME) -parallel $(JOBS) "$$package" || exit 1; \
	  done; done

.PHONY: lint
lint: native $(GOLANGCI) ## Linters with .golangci.yml (builds golangci-lint once, some minutes)
	@$(GOLANGCI) run ./...

$(GOLANGCI):
	@echo "lint: building golangci-lint $(GOLANGCI_VERSION), some minutes the first time"
	@GOBIN=$(CURDIR)/$(@D) go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_VERSION)

.PHONY: configs
configs: ## Write configs/frontend.yaml anew from the table of settings
	@go test -count=1 -run TestExampleFile ./internal/config -update

.PHONY: image
image: ## Container image portico:latest
	@docker build -t portico:latest .

.PHONY: clean
clean: ## Remove what was built (make distclean: and what was installed)
	@rm -rf bin internal/native/zz_link.go .build/native .build/bin

.PHONY: distclean
distclean: clean
	@chmod -R u+w .build 2>/dev/null || true
	@rm -rf .build
