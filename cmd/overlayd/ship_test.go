//go:build ship

package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// shipVersion is that of the release that the tests look at.
const shipVersion = "v0.0.1"

// release makes everything that is shipped out of the tracked files of this tree as they are, in a directory of its own with a history of
// one commit, and returns where it is. Only the first test that asks waits for it.
func release(t *testing.T) string {
	t.Helper()
	dir, err := makeRelease()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

var makeRelease = sync.OnceValues(func() (string, error) {
	dir := filepath.Join(os.Getenv(scratch), "a")
	if err := copyTree(dir); err != nil {
		return "", err
	}
	return filepath.Join(dir, "dist", shipVersion), makeIn(dir, "release", "VERSION="+shipVersion)
})

// copyTree copies the tracked files to a directory and commits them there, at a fixed time.
func copyTree(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	cmd := exec.Command("sh", "-ec", `git -C ../.. ls-files -z | (cd ../.. && tar --null --ignore-failed-read -T - -cf -) | tar -C "$1" -xf -
		cd "$1" && git init -q && git add -A && git -c user.name=overlayd -c user.email= commit -q -m release`, "sh", dir)
	cmd.Env = append(os.Environ(), "GIT_AUTHOR_DATE=1764000000 +0000", "GIT_COMMITTER_DATE=1764000000 +0000", "GIT_CONFIG_GLOBAL=/dev/null")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("copy the tree: %w\n%s", err, out)
	}
	return nil
}

// makeIn runs make in a directory, as a user would who has just cloned it.
func makeIn(dir string, args ...string) error {
	cmd := exec.Command("make", append([]string{"-C", dir}, args...)...)
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "MAKE") && !strings.HasPrefix(v, "GOFLAGS=") && !strings.HasPrefix(v, "VERSION=") && !strings.HasPrefix(v, "MFLAGS=") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("make %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}

// command runs a program and returns what it prints.
func command(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// TestShipReproducible: everything of a release is the same, byte for byte, if it is made in a clone elsewhere, at another time, and
// has its checksums.
func TestShipReproducible(t *testing.T) {
	a := release(t)
	clone := filepath.Join(t.TempDir(), "elsewhere", "b")
	command(t, "git", "clone", "--quiet", filepath.Dir(filepath.Dir(a)), clone)
	if err := makeIn(clone, "release", "VERSION="+shipVersion); err != nil {
		t.Fatal(err)
	}
	b := filepath.Join(clone, "dist", shipVersion)
	for _, dir := range []string{a, b} {
		if out := command(t, "sh", "-c", `cd "$0" && sha256sum --strict --check SHA256SUMS`, dir); strings.Count(out, ": OK") != len(shippedFiles()) {
			t.Errorf("%s", out)
		}
	}
	for _, name := range append(shippedFiles(), "SHA256SUMS") {
		one, err1 := os.ReadFile(filepath.Join(a, name))
		two, err2 := os.ReadFile(filepath.Join(b, name))
		if err1 != nil || err2 != nil || len(one) == 0 || !bytes.Equal(one, two) {
			t.Errorf("%s differs: %v, %v, %d and %d bytes", name, err1, err2, len(one), len(two))
		}
	}
}

// shippedFiles are all files of a release but its checksums.
func shippedFiles() []string {
	const name = "overlayd-" + shipVersion
	return []string{
		"overlayd_0.0.1-1_amd64.deb", "overlayd_0.0.1-1_arm64.deb", "overlayd-0.0.1-1.x86_64.rpm", "overlayd-0.0.1-1.aarch64.rpm",
		name + "-linux-amd64.tar.gz", name + "-linux-arm64.tar.gz", name + "-linux-amd64.cdx.json", name + "-linux-arm64.cdx.json",
		name + "-image.tar", name + "-image.tar.digest", name + "-changelog.md",
	}
}

// TestShipNotes: a release has the section of its version, or else what is not released yet, and the SBOM of what it ships.
func TestShipNotes(t *testing.T) {
	dir := release(t)
	notes, err := os.ReadFile(filepath.Join(dir, "overlayd-"+shipVersion+"-changelog.md"))
	if err != nil || !strings.HasPrefix(string(notes), "## "+shipVersion+" - 2025-11-24\n") || !strings.Contains(string(notes), "\n### Added\n") {
		t.Errorf("%v\n%.300s", err, notes)
	}
	for _, arch := range []string{"amd64", "arm64"} {
		bill, err := os.ReadFile(filepath.Join(dir, "overlayd-"+shipVersion+"-linux-"+arch+".cdx.json"))
		for _, part := range []string{`"specVersion": "1.6"`, "pkg:golang/go.etcd.io/etcd/server/v3@", `"value": "` + arch + `"`} {
			if err != nil || !strings.Contains(string(bill), part) {
				t.Errorf("%s: %v, no %s", arch, err, part)
			}
		}
	}
}

// TestShipRefuses: a release of what is no version, or of files that are in no commit, is refused.
func TestShipRefuses(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "c")
	if err := copyTree(dir); err != nil {
		t.Fatal(err)
	}
	if err := makeIn(dir, "release", "VERSION=0.1"); err == nil || !strings.Contains(err.Error(), "want a version such as v0.1.0") {
		t.Errorf("%v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "README.md"), []byte("another"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := makeIn(dir, "release", "VERSION=v0.1.0"); err == nil || !strings.Contains(err.Error(), "commit these first") {
		t.Errorf("%v", err)
	}
}

// unexpected are the warnings and errors of a log but that which etcd without TLS earns.
func unexpected(log string) (lines []string) {
	for line := range strings.Lines(log) {
		bad := strings.Contains(line, "level=WARN") || strings.Contains(line, "level=ERROR") || strings.Contains(line, "not permitted")
		if bad && !strings.Contains(line, "connection to etcd is not encrypted") {
			lines = append(lines, line)
		}
	}
	return lines
}
