package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// packetFilter is what a host's traffic rules are written with.
type packetFilter string

const (
	filterNFT    packetFilter = "nft"             // EnableNFTables
	filterIPT    packetFilter = "iptables-nft"    // iptables is that of nftables
	filterLegacy packetFilter = "iptables-legacy" // iptables is the older one
)

// in is a network config for the filter.
func (f packetFilter) in(config string) string {
	if f == filterNFT {
		return strings.Replace(config, "{", `{"EnableNFTables":true,`, 1)
	}
	return config
}

// use makes iptables that of the filter, for this test and the daemons that it starts.
func (f packetFilter) use(t *testing.T) {
	t.Helper()
	multi := "/usr/sbin/xtables-nft-multi"
	if f == filterLegacy {
		multi = "/usr/sbin/xtables-legacy-multi"
	}
	dir := t.TempDir()
	for _, command := range []string{"iptables", "ip6tables"} {
		for _, suffix := range []string{"", "-save", "-restore"} {
			if err := os.Symlink(multi, filepath.Join(dir, command+suffix)); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

// feed gives text to the standard input of a command on the host.
func (h *host) feed(text, name string, args ...string) {
	h.c.t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Stdin = strings.NewReader(text)
	var out []byte
	if err := h.Do(func() (err error) { out, err = cmd.CombinedOutput(); return err }); err != nil {
		h.c.t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
}

// ruleset is every rule of the host, of nftables and of either iptables, without counters and
// handles, in an order that does not depend on when the tables were made.
func (h *host) ruleset() string {
	h.c.t.Helper()
	tables := strings.Split("\n"+h.Run("nft", "-s", "list", "ruleset"), "\ntable ")
	slices.Sort(tables)
	text := strings.Join(tables, "\ntable ")
	for _, save := range []string{"iptables-legacy-save", "ip6tables-legacy-save"} {
		text += "\n" + h.Run(save)
	}
	var lines []string
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, ":") {
			line, _, _ = strings.Cut(line, " [") // counters
		}
		if line = strings.TrimRight(line, " \n"); line != "" && !strings.HasPrefix(line, "#") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "\n")
}
