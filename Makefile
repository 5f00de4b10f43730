# Everything a newcomer needs: `make demo` shows it working, `make test` checks it.
# Go and make are enough to start; what else a target needs it installs with apt-get.

GO       ?= go
FUZZTIME ?= 30s
VERSION  := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS  := -s -w -X main.version=$(VERSION)

export GOFLAGS := -trimpath $(GOFLAGS)

# What the tests run, as command:package of Debian. $(call need,...) installs what lacks.
TEST_TOOLS := runc:runc ip:iproute2 nft:nftables ethtool:ethtool
need = @lacks=; for n in $(1); do command -v $${n%:*} >/dev/null || lacks="$$lacks $${n\#*:}"; done; \
	test -z "$$lacks" || { apt-get update -qq && apt-get install -y -qq --no-install-recommends $$lacks; }

.PHONY: help build test race fuzz bench demo lint clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-7s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## Build bin/overlayd, static
	CGO_ENABLED=0 $(GO) build -ldflags '$(LDFLAGS)' -o bin/overlayd ./cmd/overlayd

demo: build ## Three hosts on this machine reach each other; as root, about half a minute
	bin/overlayd demo

test: build ## All tests; as root, in network namespaces of their own
	$(call need,$(TEST_TOOLS))
	$(GO) test -p 1 -shuffle=on -timeout 20m ./... # one package at a time: they time the kernel

race: ## All tests with the race detector
	$(call need,$(TEST_TOOLS) gcc:gcc gcc:libc6-dev)
	CGO_ENABLED=1 $(GO) test -p 1 -race -shuffle=on -timeout 25m ./...

fuzz: ## Every fuzz target for FUZZTIME (30s)
	@set -e; for pkg in $$($(GO) list ./...); do \
		for target in $$($(GO) test -list '^Fuzz' $$pkg | grep '^Fuzz' || true); do \
			echo "== $$pkg $$target"; $(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 10x $$pkg; \
		done; \
	done

bench: ## Encap, decap and lookup throughput; needs no root
	$(GO) test -run '^$$' -bench . ./bench

.PHONY: compare
compare: build ## Beside kernel vxlan and the overlays that Debian packages; as root, ten minutes (COMPARE="--quick": one)
	@for p in ethtool:ethtool wireguard-go:wireguard-go wg:wireguard-tools nebula:nebula openvpn:openvpn tincd:tinc; do \
		command -v $${p%:*} >/dev/null || missing="$$missing $${p#*:}"; \
	done; \
	test -z "$$missing" || { apt-get update -qq; for p in $$missing; do \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$p || echo "no package $$p: compare goes without"; \
	done; }
	$(GO) run ./bench/compare $(COMPARE)

lint: ## gofmt, vet and staticcheck
	@test -z "$$(gofmt -l .)" || { gofmt -l .; echo "gofmt would change these"; exit 1; }
	$(GO) vet ./...
	$(GO) tool staticcheck ./...

clean: ## Remove what make built
	rm -rf bin
