package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
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

// use makes iptables that of the filter, for every program on the cluster's hosts.
func (f packetFilter) use(c *cluster) {
	c.t.Helper()
	multi := "/usr/sbin/xtables-nft-multi"
	if f == filterLegacy {
		multi = "/usr/sbin/xtables-legacy-multi"
	}
	dir := c.t.TempDir()
	for _, command := range []string{"iptables", "ip6tables"} {
		for _, suffix := range []string{"", "-save", "-restore"} {
			if err := os.Symlink(multi, filepath.Join(dir, command+suffix)); err != nil {
				c.t.Fatal(err)
			}
		}
	}
	c.path = dir + ":" + os.Getenv("PATH")
}

// warning is what nft writes to the standard error about tables of iptables-nft.
var warning = regexp.MustCompile(`# Warning: [^\n]*(\n|$)`)

var (
	uplinkTable = regexp.MustCompile(`(?s)\ntable netdev overlayd-ovl\.up.*?\n}`)
	elements    = regexp.MustCompile(`\n\t\telements = {[^}]*}`)
)

// withoutHops leaves out where the uplink's packets go (dataplane/uplink): that depends on the traffic so far.
func withoutHops(rules string) string {
	return uplinkTable.ReplaceAllStringFunc("\n"+rules, func(table string) string { return elements.ReplaceAllString(table, "") })
}

// ruleset is every rule of the host, of nftables and of either iptables, without counters and
// handles, in an order that does not depend on when the tables and chains were made.
func (h *host) ruleset() string {
	h.c.t.Helper()
	listed := withoutHops(warning.ReplaceAllString(h.Run("nft", "-s", "list", "ruleset"), "\n"))
	tables := strings.Split("\n"+listed, "\ntable ")
	for i, table := range tables {
		chains := strings.Split(strings.TrimSuffix(strings.TrimSpace(table), "}"), "\tchain ")
		for j := range chains {
			chains[j] = strings.TrimSpace(chains[j])
		}
		slices.Sort(chains[1:])
		tables[i] = strings.Join(chains, "\n\tchain ")
	}
	slices.Sort(tables)
	text := strings.Join(tables, "\n}\ntable ")
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
