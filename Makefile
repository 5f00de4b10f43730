# Everything a newcomer needs: `make demo` shows it working, `make test` checks it.
# Go and make are enough to start; what else a target needs it installs with apt-get.

GO       ?= go
FUZZTIME ?= 30s
BENCHTIME ?= 1s
VERSION  := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS  := -s -w -X main.version=$(VERSION)

# What is shipped: a main package in cmd/ each.
PROGRAMS := overlayd overlayd-capture overlayd-cni

export GOFLAGS := -trimpath -ldflags=-w $(GOFLAGS)
# One build of every package serves the daemon, which is static, and the tests.
export CGO_ENABLED := 0

# Packages whose tests measure rates and times: one at a time, and none beside them. The others mostly wait, the slow ones from the beginning.
ALONE    := ./bench/compare ./cmd/overlayd
SLOW     := ./dataplane/masq ./control/etcd ./dataplane/userspace ./dataplane/guard ./dataplane/kernel ./control/etcd/history
TOGETHER = $(SLOW) $(filter-out $(SLOW) $(ALONE),$(PACKAGES))
PACKAGES = $(patsubst $(MODULE)%,.%,$(shell $(GO) list ./...))
MODULE   = $(shell $(GO) list -m)

# What the tests run, as command:package of Debian. $(call need,...) installs what lacks.
TEST_TOOLS := runc:runc ip:iproute2 nft:nftables ethtool:ethtool xtables-nft-multi:iptables /usr/lib/cni/bridge:containernetworking-plugins
need = @lacks=; for n in $(1); do command -v $${n%:*} >/dev/null || lacks="$$lacks $${n\#*:}"; done; \
	test -z "$$lacks" || { apt-get update -qq && apt-get install -y -qq --no-install-recommends $$lacks; }

# Real programs that tests run against: a module each in bench/peers, built once and kept outside the tree.
PEERS := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/overlayd

KUBE_VERSION   := 1.37.2
KUBE_APISERVER := $(PEERS)/kube-apiserver-v$(KUBE_VERSION)/kube-apiserver
KUBE_LDFLAGS   := -s -w -X k8s.io/component-base/version.gitVersion=v$(KUBE_VERSION) \
	-X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=37
# Nothing measures the server itself, and this halves the time that the compiler takes for it.
KUBE_GCFLAGS   := $(foreach m,kubernetes apiserver apiextensions-apiserver kube-aggregator,-gcflags='k8s.io/$(m)/...=-N -l')

FLANNELD_VERSION := 0.28.4
FLANNELD         := $(PEERS)/flanneld-v$(FLANNELD_VERSION)/flanneld

# Its CNI plugin: the last that is a module.
FLANNEL_CNI := $(PEERS)/flannel-cni-v0.9.1/flannel

# The newest releases that `make compare` runs beside overlayd: Debian's are of 2022.
WIREGUARD_VERSION := $(lastword $(shell sed -n 's/^.*golang.zx2c4.com\/wireguard \(v[^ ]*\).*/\1/p' bench/peers/wireguard-go/go.mod))
WIREGUARD         := $(PEERS)/wireguard-go-$(WIREGUARD_VERSION)/wireguard-go
NEBULA_VERSION    := 1.10.3
NEBULA            := $(PEERS)/nebula-v$(NEBULA_VERSION)/nebula

# Debian's etcd, unpacked and not installed.
ETCD := $(PEERS)/etcd-debian/usr/bin/etcd

# Debian's programs that read what overlayd writes, likewise, with the libraries that they need.
TOOLS := $(PEERS)/tools-debian
TOOL_LIBS     := $(TOOLS)/usr/lib/$(shell uname -m)-linux-gnu
TOOL_PACKAGES := tshark tcpdump prometheus chromium-headless-shell

HELM_VERSION := 3.22.0
HELM         := $(PEERS)/helm-v$(HELM_VERSION)/helm

# All tests that need a program which is not this module's: one build serves every target with -tags. `make lint` vets.
TAGS      := kube,flannel,oldetcd,upgrade,tools,ship,manual
WITH_BOTH := ^TestKube(SwapMatrix|FlanneldAndBack|MoveFromFlannel)$$

# What make test-long may take, or all. SEED=<n> repeats a run; ONLY='^drift' runs the rows that it matches.
LONG ?= 15m
ONLY ?=
SEED ?= 0

.PHONY: help build test test-long test-kube test-etcd test-flannel test-swap test-tools race fuzz bench demo lint clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## Build what is shipped to bin/: bin/overlayd and others, static
	$(GO) build -ldflags '$(LDFLAGS)' -o bin/ $(PROGRAMS:%=./cmd/%)

demo: build ## Three hosts on this machine reach each other; as root, about ten seconds
	bin/overlayd demo

test: build ## Every test that a change should pass; as root, in network namespaces of their own, six minutes
	$(call need,$(TEST_TOOLS))
	$(GO) test -vet=off -p 5 -parallel 6 -shuffle=on -timeout 10m $(TOGETHER)
	$(GO) test -vet=off -p 1 -parallel 6 -shuffle=on -timeout 20m $(ALONE)

test-long: $(FLANNELD) $(ETCD) ## Soak, chaos, fuzzing: what LONG=15m draws by a seed, or LONG=all (SEED=<n> repeats a run)
	$(call need,$(TEST_TOOLS) gcc:gcc gcc:libc6-dev)
	OVERLAYD_FLANNELD=$(FLANNELD) OVERLAYD_ETCD=$(ETCD) $(GO) run ./bench/long --time $(LONG) --seed $(SEED) --only '$(ONLY)'

.PHONY: flanneld kube-apiserver
flanneld: $(FLANNELD) $(FLANNEL_CNI) # what the targets below need, built once
kube-apiserver: $(KUBE_APISERVER)

test-kube: test-kube-store test-kube-daemon ## Tests with a real kube-apiserver, which the first run builds in five minutes

.PHONY: test-kube-store test-kube-daemon
test-kube-store: $(KUBE_APISERVER)
	OVERLAYD_KUBE_APISERVER=$< $(GO) test -vet=off -tags $(TAGS) -shuffle=on -timeout 20m ./control/kube

test-kube-daemon: $(KUBE_APISERVER) $(HELM)
	$(call need,$(TEST_TOOLS) kubectl:kubernetes-client)
	OVERLAYD_KUBE_APISERVER=$< OVERLAYD_HELM=$(HELM) $(GO) test -vet=off -tags $(TAGS) -shuffle=on -timeout 20m -run '^TestKube' -skip '$(WITH_BOTH)' ./cmd/overlayd

$(KUBE_APISERVER):
	mkdir -p $(@D)
	cd bench/peers/kube-apiserver && $(GO) build -buildvcs=false -ldflags '$(KUBE_LDFLAGS)' $(KUBE_GCFLAGS) \
		-o $@.part k8s.io/kubernetes/cmd/kube-apiserver && mv $@.part $@

test-etcd: $(ETCD) ## Tests with Debian's etcd, which is 3.4, beside those with this module's own
	OVERLAYD_ETCD=$< $(GO) test -vet=off -tags $(TAGS) -shuffle=on -parallel 8 -timeout 10m -run '^TestOtherEtcd' ./control/etcd ./cmd/overlayd

$(ETCD):
	rm -rf $(PEERS)/etcd-debian && mkdir -p $(PEERS)/etcd-debian.part
	cd $(PEERS)/etcd-debian.part && apt-get update -qq && apt-get download -qq etcd-server && dpkg -x etcd-server_*.deb .
	mv $(PEERS)/etcd-debian.part $(PEERS)/etcd-debian

test-flannel: $(FLANNELD) $(FLANNEL_CNI) ## Tests with a real flanneld and its CNI plugin, which the first run builds in two minutes
	$(call need,$(TEST_TOOLS))
	OVERLAYD_FLANNELD=$< OVERLAYD_FLANNEL_CNI=$(FLANNEL_CNI) $(GO) test -vet=off -tags $(TAGS) -shuffle=on -timeout 20m -run '^TestFlanneld' ./cmd/overlayd

test-swap: $(FLANNELD) $(KUBE_APISERVER) $(HELM) ## Nodes that change between flanneld and both dataplanes in place (test-flannel: with etcd)
	$(call need,$(TEST_TOOLS) kubectl:kubernetes-client)
	OVERLAYD_FLANNELD=$(FLANNELD) OVERLAYD_KUBE_APISERVER=$(KUBE_APISERVER) OVERLAYD_HELM=$(HELM) $(GO) test -vet=off -tags $(TAGS) -v -parallel 2 -timeout 20m -run '$(WITH_BOTH)' ./cmd/overlayd

$(FLANNELD): # its udp backend needs cgo, and nothing else: with these tags the standard library is built as without
	$(call need,gcc:gcc gcc:libc6-dev)
	mkdir -p $(@D)
	cd bench/peers/flanneld && CGO_ENABLED=1 $(GO) build -buildvcs=false -tags netgo,osusergo \
		-ldflags '-s -w -X github.com/flannel-io/flannel/pkg/version.Version=v$(FLANNELD_VERSION)' \
		-o $@.part github.com/flannel-io/flannel && mv $@.part $@

$(FLANNEL_CNI):
	mkdir -p $(@D)
	cd bench/peers/flannel-cni && $(GO) build -buildvcs=false -o $@.part github.com/containernetworking/plugins/plugins/meta/flannel && mv $@.part $@

test-tools: $(TOOLS) ## Tests with Debian's tshark, tcpdump, promtool and Chromium, which read what overlayd writes
	$(call need,$(TEST_TOOLS))
	PATH="$(TOOLS)/usr/lib/chromium:$(TOOLS)/usr/bin:$$PATH" LD_LIBRARY_PATH=$(TOOL_LIBS):$(TOOL_LIBS)/pulseaudio \
		$(GO) test -vet=off -tags $(TAGS) -timeout 10m -run '^TestTools' ./cmd/overlayd

$(TOOLS):
	rm -rf $@.part && mkdir -p $@.part/partial && apt-get update -qq
	apt-get install -qq -y --no-install-recommends --reinstall --download-only -o Dir::Cache::archives=$@.part $(TOOL_PACKAGES)
	cd $@.part && for p in *.deb; do dpkg -x $$p . && rm $$p; done
	mv $@.part $@

include deploy/chart.mk
include deploy/ship.mk

# A process with the detector waits a second before it exits, for what other threads may still do. The tests run hundreds of commands.
race: export GORACE := atexit_sleep_ms=10 $(GORACE)
race: ## All tests with the race detector
	$(call need,$(TEST_TOOLS) gcc:gcc gcc:libc6-dev)
	CGO_ENABLED=1 $(GO) test -vet=off -p 2 -parallel 4 -race -shuffle=on -timeout 15m ./bench/compare $(TOGETHER)
	CGO_ENABLED=1 $(GO) test -vet=off -p 1 -parallel 4 -race -shuffle=on -timeout 25m ./cmd/overlayd

# At the end of its time Go's fuzzer may fail without an input that fails (golang/go#75804, mended in Go 1.27). An input that fails is written
# down, and fails again.
fuzz: ## Every fuzz target for FUZZTIME (30s)
	@set -e; for pkg in $$($(GO) list ./...); do \
		for target in $$($(GO) test -list '^Fuzz' $$pkg | grep '^Fuzz' || true); do \
			echo "== $$pkg $$target"; $(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 10x $$pkg || \
			$(GO) test -count=1 -run "^$$target\$$" $$pkg; \
		done; \
	done

bench: ## Encap, decap and lookup throughput; needs no root
	$(GO) test -run '^$$' -bench . -benchtime $(BENCHTIME) ./bench

.PHONY: compare
$(WIREGUARD):
	mkdir -p $(@D)
	cd bench/peers/wireguard-go && CGO_ENABLED=0 $(GO) build -buildvcs=false -o $@.part golang.zx2c4.com/wireguard && mv $@.part $@

$(NEBULA): # with nebula-cert beside it
	mkdir -p $(@D)
	cd bench/peers/nebula && for p in nebula-cert nebula; do \
		CGO_ENABLED=0 $(GO) build -buildvcs=false -ldflags '-X main.Build=$(NEBULA_VERSION)' -o $(@D)/$$p.part github.com/slackhq/nebula/cmd/$$p && mv $(@D)/$$p.part $(@D)/$$p || exit 1; \
	done

compare: build $(WIREGUARD) $(NEBULA) ## Beside kernel vxlan and other overlays; as root, a quarter of an hour (COMPARE="--quick": two minutes)
	@for p in ethtool:ethtool wg:wireguard-tools openvpn:openvpn tincd:tinc; do \
		command -v $${p%:*} >/dev/null || missing="$$missing $${p#*:}"; \
	done; \
	test -z "$$missing" || { apt-get update -qq; for p in $$missing; do \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$p || echo "no package $$p: compare goes without"; \
	done; }
	PATH="$(dir $(WIREGUARD)):$(dir $(NEBULA)):$$PATH:$(dir $(FLANNELD))" $(GO) run ./bench/compare $(COMPARE)

lint: ## gofmt, vet (also for a laptop with macOS) and staticcheck
	@test -z "$$(gofmt -l .)" || { gofmt -l .; echo "gofmt would change these"; exit 1; }
	$(GO) vet -tags $(TAGS) ./...
	GOOS=darwin $(GO) vet ./encap ./dataplane/fib ./control ./bench
	$(GO) tool staticcheck -tags $(TAGS) ./...

clean: ## Remove what make built
	rm -rf bin dist
