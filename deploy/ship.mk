# What leaves this repository: packages, image, release. For one commit and one version of Go they are the same, byte for byte, wherever
# and whenever they are made. All of it goes to dist/, and needs the Go module proxy and Debian alone.

ARCHES := amd64 arm64
DIST   := dist/$(VERSION)
STAGE  := dist/stage/$(VERSION)
NFPM   := $(GO) run github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.45.0
CRANE  := $(PEERS)/crane-v0.22.1/crane

# Of the commit, from which everything gets its time. Without git, as from an archive of the sources, give them.
REVISION          ?= $(shell git rev-parse HEAD 2>/dev/null || echo unknown)
SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 0)

# v0.1.0-rc.1 is before 0.1.0, v0.1.0-5-g1234567 after it, and what has no number before all that have: deb-version(7).
PACKAGE_VERSION = $(shell echo '$(VERSION)' | sed -E \
	-e 's/^v([0-9])/\1/;t number' -e 's/^/0~/' -e ':number' -e 's/-([0-9]+)-(g[0-9a-f]+)/+\1.\2/' -e 's/-dirty$$/+dirty/' -e 's/-/~/g')

.PHONY: packages image release docs test-ship programs $(ARCHES:%=programs-%)

programs: $(ARCHES:%=programs-%)

# Each architecture in its oldest version, whatever the environment says.
$(ARCHES:%=programs-%): programs-%:
	rm -rf $(STAGE)/programs/$*
	GOOS=linux GOARCH=$* GOAMD64=v1 GOARM64=v8.0 $(GO) build -buildvcs=false -ldflags '$(LDFLAGS)' -o $(STAGE)/programs/$*/ $(PROGRAMS:%=./cmd/%)

.PHONY: manual
manual: # man pages, completions and Markdown
	rm -rf $(STAGE)/manual
	SOURCE_DATE_EPOCH=$(SOURCE_DATE_EPOCH) $(GO) run -buildvcs=false -tags manual -ldflags '$(LDFLAGS)' ./cmd/overlayd manual $(STAGE)/manual
	gzip -9nr $(STAGE)/manual/man

docs: manual ## Write docs/cli, the reference of commands and flags
	rm -rf docs/cli && cp -r $(STAGE)/manual/cli docs/cli

.PHONY: notices
notices: programs # licenses of what is linked; Debian's changelog
	mkdir -p $(STAGE)/doc
	$(GO) run ./cmd/internal/sbom --notices $(STAGE)/programs/*/* | gzip -9n > $(STAGE)/doc/NOTICES.gz
	gzip -9nc CHANGELOG.md > $(STAGE)/doc/changelog.gz
	printf 'overlayd (%s) unstable; urgency=medium\n\n  * See changelog.gz.\n\n -- overlayd maintainers <overlayd@users.noreply.github.com>  %s\n' \
		'$(PACKAGE_VERSION)-1' "$$(date -u -R -d @$(SOURCE_DATE_EPOCH))" | gzip -9n > $(STAGE)/doc/changelog.Debian.gz

packages: programs manual notices ## dist/VERSION: deb and rpm for amd64 and arm64
	mkdir -p $(DIST)
	@set -e; for arch in $(ARCHES); do for kind in deb rpm; do \
		ARCH=$$arch STAGE=$(STAGE) PACKAGE_VERSION='$(PACKAGE_VERSION)' SOURCE_DATE_EPOCH=$(SOURCE_DATE_EPOCH) \
			$(NFPM) package -f deploy/packages/nfpm.yaml -p $$kind -t $(DIST)/; \
	done; done

image: programs $(CRANE) ## dist/VERSION: an image of amd64 and arm64, as an OCI archive
	mkdir -p $(DIST)
	CRANE=$(CRANE) VERSION='$(VERSION)' REVISION=$(REVISION) SOURCE_DATE_EPOCH=$(SOURCE_DATE_EPOCH) \
		deploy/image/build $(STAGE)/programs $(DIST)/overlayd-$(VERSION)-image.tar $(ARCHES)

$(CRANE):
	GOBIN=$(@D) $(GO) install github.com/google/go-containerregistry/cmd/crane@v0.22.1

release: ## Everything of VERSION=v0.1.0 in dist/v0.1.0: programs, packages, image, SBOM, changelog, checksums
	@echo '$(VERSION)' | grep -qE '^v[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.]+)?$$' || { echo "VERSION=$(VERSION): want a version such as v0.1.0"; exit 1; }
	@test -z "$$(git status --porcelain)" || { git status --short; echo "commit these first: a release is made of a commit"; exit 1; }
	rm -rf $(DIST) $(STAGE)
	$(MAKE) --no-print-directory packages image archives bills changelog
	cd $(DIST) && LC_ALL=C sha256sum * > SHA256SUMS

.PHONY: archives bills changelog
archives: programs manual notices # programs, manual and unit, for who has neither deb nor rpm
	mkdir -p $(DIST)
	@set -e; for arch in $(ARCHES); do \
		dir=$(STAGE)/archive/overlayd-$(VERSION)-linux-$$arch; \
		rm -rf $$dir && mkdir -p $$dir && cp -r $(STAGE)/programs/$$arch/* $(STAGE)/manual/man $(STAGE)/manual/completions \
			deploy/systemd deploy/packages/overlayd.env LICENSE README.md CHANGELOG.md $(STAGE)/doc/NOTICES.gz $$dir; \
		tar -C $${dir%/*} --sort=name --format=ustar --mtime=@$(SOURCE_DATE_EPOCH) --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX \
			-cf - $${dir##*/} | gzip -9n > $(DIST)/$${dir##*/}.tar.gz; \
	done

bills: programs # what is in the programs
	mkdir -p $(DIST)
	@set -e; for arch in $(ARCHES); do $(GO) run ./cmd/internal/sbom --version $(VERSION) --date $(SOURCE_DATE_EPOCH) \
		$(PROGRAMS:%=$(STAGE)/programs/$$arch/%) > $(DIST)/overlayd-$(VERSION)-linux-$$arch.cdx.json; done

changelog: # the section of this version, else what is not released
	mkdir -p $(DIST)
	@awk -v version='$(VERSION)' -v date="$$(date -u -d @$(SOURCE_DATE_EPOCH) +%F)" ' \
		/^## / {in_own = $$2 == version; in_next = $$2 == "Unreleased"; next} \
		in_own {own = own $$0 "\n"} in_next {next_ = next_ $$0 "\n"} \
		END {text = own ? own : next_; if (text !~ /[^\n]/) {print "CHANGELOG.md has nothing for " version > "/dev/stderr"; exit 1} \
			printf "## %s - %s\n%s", version, date, text}' CHANGELOG.md > $(DIST)/overlayd-$(VERSION)-changelog.md

# What the tests run. The root of a Debian is made once.
SHIP_TOOLS  := lintian:lintian rpm:rpm umoci:umoci man:man-db fish:fish zsh:zsh /usr/share/bash-completion/bash_completion:bash-completion \
	systemd-analyze:systemd mmdebstrap:mmdebstrap git:git setpriv:util-linux
DEBIAN_ROOT := $(PEERS)/root-debian.tar

test-ship: $(DEBIAN_ROOT) $(CRANE) ## Tests of packages, units, image and release, which are made for it, in four minutes
	$(call need,$(TEST_TOOLS) $(SHIP_TOOLS))
	OVERLAYD_DEBIAN_ROOT=$(DEBIAN_ROOT) $(GO) test -vet=off -tags $(TAGS) -v -timeout 20m -run '^TestShip' ./cmd/overlayd

$(DEBIAN_ROOT): # with systemd, which the tests boot
	$(call need,mmdebstrap:mmdebstrap)
	mkdir -p $(@D)
	mmdebstrap --quiet --variant=minbase --include=systemd,iproute2 "$$(. /etc/os-release && echo $$VERSION_CODENAME)" $@.part.tar && mv $@.part.tar $@
