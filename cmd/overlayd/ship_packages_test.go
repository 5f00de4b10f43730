//go:build ship

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// deb and rpm return the path of a package.
func deb(t *testing.T, arch string) string {
	t.Helper()
	return filepath.Join(release(t), "overlayd_0.0.1-1_"+arch+".deb")
}

func rpm(t *testing.T, arch string) string {
	t.Helper()
	return filepath.Join(release(t), "overlayd-0.0.1-1."+arch+".rpm")
}

// unpacked returns a directory with the files of the deb for this machine.
func unpacked(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	command(t, "dpkg-deb", "-x", deb(t, "amd64"), dir)
	return dir
}

// packageFiles are the files that both kinds of packages have, besides the programs.
var packageFiles = []string{
	"/etc/overlayd.env", "/usr/lib/systemd/system/overlayd.service", "/usr/lib/systemd/system/overlayd@.service",
	"/usr/share/man/man8/overlayd.8.gz", "/usr/share/man/man8/overlayd-status.8.gz", "/usr/share/man/man8/overlayd-lease-list.8.gz",
	"/usr/share/bash-completion/completions/overlayd", "/usr/share/fish/vendor_completions.d/overlayd.fish", "/usr/share/doc/overlayd/NOTICES.gz",
}

// hasFiles checks that a package has some files, the programs and those of every package.
func hasFiles(t *testing.T, file string, list string, more ...string) {
	t.Helper()
	has := strings.Split(list, "\n")
	for _, name := range programs(t) {
		more = append(more, "/usr/bin/"+name)
	}
	for _, path := range append(more, packageFiles...) {
		if !slices.Contains(has, path) {
			t.Errorf("%s has no %s:\n%s", filepath.Base(file), path, list)
		}
	}
}

// TestShipDeb: lintian has nothing against the debs, and they have what they should.
func TestShipDeb(t *testing.T) {
	for _, arch := range []string{"amd64", "arm64"} {
		file := deb(t, arch)
		if out, err := exec.Command("lintian", "--fail-on", "error,warning", "--tag-display-limit", "0", file).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", arch, err, out)
		}
		hasFiles(t, file, command(t, "sh", "-c", `dpkg-deb --fsys-tarfile "$0" | tar -tf - | sed 's/^\.*//'`, file),
			"/usr/share/zsh/vendor-completions/_overlayd", "/usr/share/doc/overlayd/copyright", "/usr/share/doc/overlayd/changelog.Debian.gz")
		if got := strings.TrimSpace(command(t, "dpkg-deb", "-f", file, "Architecture")); got != arch {
			t.Errorf("%s: architecture %s", arch, got)
		}
	}
	if out := command(t, "dpkg-deb", "-I", deb(t, "amd64"), "conffiles"); strings.TrimSpace(out) != "/etc/overlayd.env" {
		t.Errorf("conffiles %q", out)
	}
}

// TestShipRPM: rpm reads the rpms, whose digests are right, and they have what they should.
func TestShipRPM(t *testing.T) {
	for _, arch := range []string{"x86_64", "aarch64"} {
		file := rpm(t, arch)
		if got := command(t, "rpm", "-qp", "--qf", "%{name} %{version}-%{release} %{arch} %{license}", file); got != "overlayd 0.0.1-1 "+arch+" Apache-2.0" {
			t.Errorf("%s", got)
		}
		command(t, "rpm", "-K", "--nosignature", file)
		hasFiles(t, file, command(t, "rpm", "-qpl", file), "/usr/share/zsh/site-functions/_overlayd", "/usr/share/licenses/overlayd/LICENSE")
		if out := command(t, "rpm", "-qpc", file); strings.TrimSpace(out) != "/etc/overlayd.env" {
			t.Errorf("%s: config files %q", arch, out)
		}
		for _, script := range []string{"postinstall", "preuninstall", "postuninstall"} {
			if out := command(t, "rpm", "-qp", "--scripts", file); !strings.Contains(out, script+" scriptlet") {
				t.Errorf("%s: no %s:\n%s", arch, script, out)
			}
		}
	}
}

// TestShipMan: man formats every page without a warning, and there is one for each command.
func TestShipMan(t *testing.T) {
	pages, err := filepath.Glob(filepath.Join(unpacked(t), "usr/share/man/man8/*"))
	if err != nil || len(pages) < 20 {
		t.Fatalf("%d pages: %v", len(pages), err)
	}
	for _, page := range pages {
		cmd := exec.Command("man", "--warnings", "-E", "UTF-8", "-l", page)
		cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8", "MANWIDTH=100", "MANPAGER=cat", "MANROFFOPT=-c")
		var said strings.Builder
		cmd.Stderr = &said
		out, err := cmd.Output()
		text := string(out)
		if err != nil || said.Len() > 0 || !strings.Contains(text, "DESCRIPTION") {
			t.Errorf("%s: %v\n%s", filepath.Base(page), err, said.String())
		}
		switch filepath.Base(page) {
		case "overlayd.8.gz": // what Markdown takes for its own is there, and blocks are as they were
			for _, part := range []string{"overlayd pki init\n", "  # In Kubernetes, for every node:\n"} {
				if !strings.Contains(text, part) {
					t.Errorf("overlayd.8 lacks %q:\n%s", part, text)
				}
			}
			text = strings.Join(strings.Fields(text), " ")
			for _, part := range []string{"below <etcd-prefix>/<name>", "OVERLAYD_ETCD_ENDPOINTS", "--etcd-endpoints", "overlayd-status(8)"} {
				if !strings.Contains(text, part) {
					t.Errorf("overlayd.8 lacks %q:\n%s", part, text)
				}
			}
		}
	}
}

// TestShipCompletions: bash, zsh and fish load their completions, and complete a command.
func TestShipCompletions(t *testing.T) {
	root := unpacked(t)
	for shell, script := range map[string]string{
		"bash": `. /usr/share/bash-completion/bash_completion && . "$root/usr/share/bash-completion/completions/overlayd" &&
			COMP_WORDS=(overlayd dra) COMP_CWORD=1 COMP_LINE='overlayd dra' COMP_POINT=12 && __start_overlayd overlayd dra overlayd && printf '%s\n' "${COMPREPLY[@]}"`,
		// As a user types it, in a terminal: what zsh makes of the tab is on the screen.
		"zsh": `zmodload zsh/zpty && zpty z "TERM=dumb PS1= zsh -f -i" &&
			zpty -w z 'fpath=("$root/usr/share/zsh/vendor-completions" $fpath); autoload -U compinit; compinit -u -D; echo load""ed' && zpty -r -m z seen '*loaded*' &&
			zpty -w -n z $'overlayd dra\t' && zpty -r -m z seen '*drain*' && print drain`,
		"fish": `source $root/usr/share/fish/vendor_completions.d/overlayd.fish; and complete -C 'overlayd dra'`,
	} {
		args := map[string][]string{"bash": {"--norc"}, "zsh": {"-f"}, "fish": {"--no-config"}}[shell]
		cmd := exec.Command("timeout", append(append([]string{"30", shell}, args...), "-c", script)...)
		cmd.Env = append(os.Environ(), "root="+root, "HOME="+t.TempDir(), fmt.Sprintf("PATH=%s/usr/bin:%s", root, os.Getenv("PATH")))
		var said strings.Builder // compopt says that nobody has pressed a key
		cmd.Stderr = &said
		if out, err := cmd.Output(); err != nil || !strings.HasPrefix(string(out), "drain") || strings.Count(string(out), "\n") != 1 {
			t.Errorf("%s: %v\n%s%s", shell, err, out, &said)
		}
	}
}
