# Everything a newcomer needs: `make demo` shows it working, `make test` checks it.
# Go and make are enough to start; what else a target needs it installs with apt-get.

GO       ?= go
FUZZTIME ?= 30s
VERSION  := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS  := -s -w -X main.version=$(VERSION)

export GOFLAGS := -trimpath $(GOFLAGS)

# What the tests run, as command:package of Debian. $(call need,...) installs what lacks.
TEST_TOOLS := runc:runc ip:iproute2 nft:nftables ethtool:ethtool xtables-nft-multi:iptables /usr/lib/cni/bridge:containernetworking-plugins
need = @lacks=; for n in $(1); do command -v $${n%:*} >/dev/null || lacks="$$lacks $${n\#*:}"; done; \
	test -z "$$lacks" || { apt-get update -qq && apt-get install -y -qq --no-install-recommends $$lacks; }

# A real Kubernetes API server for the tests, built once and kept outside the tree.
KUBE_VERSION   := 1.37.1
KUBE_APISERVER := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/overlayd/kube-apiserver-v$(KUBE_VERSION)/kube-apiserver
KUBE_LDFLAGS   := -s -w -X k8s.io/component-base/version.gitVersion=v$(KUBE_VERSION) \
	-X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=37

.PHONY: help build test test-kube race fuzz bench demo lint clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## Build bin/overlayd, static
	CGO_ENABLED=0 $(GO) build -ldflags '$(LDFLAGS)' -o bin/overlayd ./cmd/overlayd

demo: build ## Three hosts on this machine reach each other; as root, about half a minute
	bin/overlayd demo

test: build ## All tests; as root, in network namespaces of their own
	$(call need,$(TEST_TOOLS))
	$(GO) test -p 1 -shuffle=on -timeout 20m ./... # one package at a time: they time the kernel

test-kube: $(KUBE_APISERVER) ## Tests against a real kube-apiserver; the first time it is built, in five minutes
	$(call need,$(TEST_TOOLS))
	OVERLAYD_KUBE_APISERVER=$< $(GO) test -tags kube -shuffle=on -timeout 10m ./control/kube
	OVERLAYD_KUBE_APISERVER=$< $(GO) test -tags kube -shuffle=on -timeout 10m -run '^TestKube' ./cmd/overlayd

$(KUBE_APISERVER):
	mkdir -p $(@D)
	cd control/kube/testserver && CGO_ENABLED=0 $(GO) build -buildvcs=false -ldflags '$(KUBE_LDFLAGS)' \
		-o $@.part k8s.io/kubernetes/cmd/kube-apiserver && mv $@.part $@

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
	$(GO) vet -tags kube ./...
	$(GO) tool staticcheck -tags kube ./...

clean: ## Remove what make built
	rm -rf bin
