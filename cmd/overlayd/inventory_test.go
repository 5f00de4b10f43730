package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/control"
)

// inventory reads every object of a host that overlayd or flanneld could have made, a line each: links and
// addresses, routes, nexthop objects, neighbours, FDB entries, routing rules, traffic rules, files and
// claims. What the kernel makes by itself is left out: its own routes, link-local addresses, and multicast
// addresses. ids are the node IDs that the node files have.
type inventory struct {
	*host
	dir   string // of the subnet file
	lines []string
}

// take returns the lines.
func (v *inventory) take() []string {
	v.c.t.Helper()
	v.lines = nil
	v.links()
	for _, family := range []string{"-4", "-6"} {
		v.routes(family)
		v.routingRules(family)
	}
	v.nexthops()
	v.neighbours()
	v.rules()
	v.files()
	return v.lines
}

func (v *inventory) add(format string, args ...any) {
	v.lines = append(v.lines, strings.TrimRight(fmt.Sprintf(format, args...), " "))
}

// read runs a command that prints JSON.
func (v *inventory) read(to any, command string) {
	v.c.t.Helper()
	words := strings.Fields(command)
	if out := v.Run(words[0], words[1:]...); out != "" {
		if err := json.Unmarshal([]byte(out), to); err != nil {
			v.c.t.Fatalf("%s: %v\n%s", command, err, out)
		}
	}
}

func (v *inventory) links() {
	var links []struct {
		Name  string   `json:"ifname"`
		Flags []string `json:"flags"`
		MTU   int      `json:"mtu"`
		MAC   string   `json:"address"`
		Alias string   `json:"ifalias"`
		Type  string   `json:"link_type"`
		Info  struct {
			Kind string `json:"info_kind"`
			Data struct {
				ID       int    `json:"id"`
				Local    string `json:"local"`
				Local6   string `json:"local6"`
				Link     string `json:"link"`
				Port     int    `json:"port"`
				Learning bool   `json:"learning"`
			} `json:"info_data"`
		} `json:"linkinfo"`
		Addrs []struct {
			Local string `json:"local"`
			Bits  int    `json:"prefixlen"`
		} `json:"addr_info"`
	}
	v.read(&links, "ip -j -d addr")
	for _, l := range links {
		kind, data := l.Info.Kind, l.Info.Data
		if strings.HasPrefix(l.Name, "ovl.up") {
			continue // it goes with its process: TestUplink
		}
		switch {
		case kind == "":
			kind = l.Type
		case kind == "vxlan":
			kind = fmt.Sprintf("vxlan id %d local %s%s dev %s port %d", data.ID, data.Local, data.Local6, data.Link, data.Port)
			if data.Learning {
				kind += " learning"
			}
		}
		text := fmt.Sprintf("link %s %s", l.Name, kind)
		if !strings.HasPrefix(l.Name, "pod") { // whose MTU is that of its first daemon's network
			text += fmt.Sprintf(" mtu %d", l.MTU)
		}
		if l.Info.Kind == "vxlan" {
			text += " mac " + l.MAC
		}
		if l.Alias != "" {
			text += " alias " + l.Alias
		}
		if slices.Contains(l.Flags, "UP") {
			text += " up"
		}
		v.add("%s", text)
		for _, a := range l.Addrs {
			if !netip.MustParseAddr(a.Local).IsLinkLocalUnicast() {
				v.add("address %s %s/%d", l.Name, a.Local, a.Bits)
			}
		}
	}
}

func (v *inventory) routes(family string) {
	var routes []struct {
		Type     string   `json:"type"`
		Dst      string   `json:"dst"`
		Gateway  string   `json:"gateway"`
		Dev      string   `json:"dev"`
		Table    string   `json:"table"`
		Protocol string   `json:"protocol"`
		Metric   int      `json:"metric"`
		Flags    []string `json:"flags"`
		Nexthops []any    `json:"nexthops"`
	}
	v.read(&routes, "ip -j -d "+family+" route show table all")
	for _, r := range routes {
		if r.Protocol == "kernel" {
			continue
		}
		text := "route "
		if r.Type != "unicast" {
			text += r.Type + " "
		}
		text += r.Dst
		if r.Gateway != "" {
			text += " via " + r.Gateway
		}
		text += " dev " + r.Dev + " proto " + r.Protocol
		if r.Metric != 0 && !(r.Metric == 1024 && family == "-6") {
			text += fmt.Sprintf(" metric %d", r.Metric)
		}
		if r.Table != "main" {
			text += " table " + r.Table
		}
		if slices.Contains(r.Flags, "onlink") {
			text += " onlink"
		}
		if len(r.Nexthops) > 0 {
			text += fmt.Sprint(" nexthops ", r.Nexthops)
		}
		v.add("%s", text)
	}
}

func (v *inventory) routingRules(family string) {
	var rules []map[string]any
	v.read(&rules, "ip -j "+family+" rule")
	for _, r := range rules {
		text := fmt.Sprintf("rule %s %v %v table %v", map[string]string{"-4": "inet", "-6": "inet6"}[family], r["priority"], r["src"], r["table"])
		for _, known := range []string{"priority", "src", "table"} {
			delete(r, known)
		}
		if len(r) > 0 {
			text += fmt.Sprint(" ", r)
		}
		v.add("%s", text)
	}
}

func (v *inventory) nexthops() {
	var nexthops []struct {
		Gateway, Dev, Protocol string
		Flags                  []string
	}
	v.read(&nexthops, "ip -j nexthop")
	for _, n := range nexthops {
		v.add("nexthop via %s dev %s proto %s %s", n.Gateway, n.Dev, n.Protocol, strings.Join(n.Flags, " "))
	}
}

// neighbours are the permanent ones, and what the overlay devices' FDB has.
func (v *inventory) neighbours() {
	var neighbours []struct{ Dst, Dev, Lladdr string }
	v.read(&neighbours, "ip -j neigh show nud permanent")
	for _, n := range neighbours {
		v.add("neighbour %s %s mac %s", n.Dev, n.Dst, n.Lladdr)
	}
	var entries []struct{ MAC, Ifname, Dst, State string }
	v.read(&entries, "bridge -j fdb show")
	for _, e := range entries {
		if e.Dst != "" {
			text := fmt.Sprintf("fdb %s %s dst %s", e.Ifname, e.MAC, e.Dst)
			if e.State != "permanent" {
				text += " " + e.State
			}
			v.add("%s", text)
		}
	}
}

// rules are those of both iptables and of the tables of nft that are not iptables'.
func (v *inventory) rules() {
	for _, variant := range []packetFilter{filterIPT, filterLegacy} {
		multi := map[packetFilter]string{filterIPT: "xtables-nft-multi", filterLegacy: "xtables-legacy-multi"}[variant]
		for family, save := range map[string]string{"ip": "iptables-save", "ip6": "ip6tables-save"} {
			v.saved(string(variant)+" "+family, v.Run("/usr/sbin/"+multi, save))
		}
	}
	for line := range strings.Lines(v.Run("nft", "list", "tables")) {
		_, table, _ := strings.Cut(strings.TrimSpace(line), " ")
		words := strings.Fields(table)
		if len(words) != 2 || slices.Contains([]string{"ip", "ip6"}, words[0]) && slices.Contains([]string{"nat", "filter", "mangle", "raw", "security"}, words[1]) {
			continue
		}
		v.listed(table, v.Run("nft", "-s", "list", "table", words[0], words[1]))
	}
}

// counted are the places of rules in their chains.
type counted map[string]int

func (c counted) next(chain string) int { c[chain]++; return c[chain] }

// baseChains are those of iptables.
var baseChains = regexp.MustCompile(`^(PREROUTING|INPUT|FORWARD|OUTPUT|POSTROUTING)$`)

// saved takes what iptables-save has printed.
func (v *inventory) saved(where, text string) {
	table, places := "", counted{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "*"):
			table = where + " " + line[1:]
		case strings.HasPrefix(line, ":"):
			words := strings.Fields(line[1:])
			if words[1] != "ACCEPT" && words[1] != "-" {
				v.add("%s %s policy %s", table, words[0], words[1])
			} else if words[1] == "-" {
				v.add("%s %s", table, words[0])
			}
		case strings.HasPrefix(line, "-A "):
			chain, rule, _ := strings.Cut(line[3:], " ")
			if baseChains.MatchString(chain) {
				v.add("%s %s", table, line)
			} else {
				v.add("%s %s %d: %s", table, chain, places.next(table+chain), rule)
			}
		case strings.Contains(line, "incompatible"):
			v.add("%s %s", where, line)
		}
	}
}

// listed takes the lines that nft lists for a table.
func (v *inventory) listed(table, text string) {
	if strings.HasPrefix(table, "netdev overlayd-ovl.up") {
		return // it goes with its process: TestUplink
	}
	v.add("nft %s", table)
	if strings.HasPrefix(table, "inet overlayd-guard-") {
		return // its rules have tests of their own
	}
	chain, places := "", counted{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if name, ok := strings.CutPrefix(line, "chain "); ok {
			chain = strings.TrimSuffix(name, " {")
			v.add("nft %s %s", table, chain)
		} else if line != "}" && line != "" && !strings.HasPrefix(line, "table ") && !strings.HasPrefix(line, "comment ") {
			v.add("nft %s %s %d: %s", table, chain, places.next(chain), line)
		}
	}
}

// files are those beside the subnet files, and the claims of this network namespace.
func (v *inventory) files() {
	entries, err := os.ReadDir(v.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		v.c.t.Fatal(err)
	}
	for _, e := range entries {
		path := filepath.Join(v.dir, e.Name())
		info, err := e.Info()
		if err != nil {
			continue // it has just gone
		}
		text := ""
		if info.Mode().Type() == fs.ModeSocket {
			text = "socket"
		} else if b, err := os.ReadFile(path); err == nil {
			text = strings.Join(strings.Fields(string(b)), " ")
			if strings.HasSuffix(path, ".env.node") {
				text = nodeText(path, string(b))
			}
			if strings.HasSuffix(path, ".env.leases") && strings.HasPrefix(text, "overlayd leases 1 ") {
				text = "leases"
			}
		}
		v.add("file %s %04o: %s", e.Name(), info.Mode().Perm(), text)
	}
	for _, path := range claims(v.host) {
		v.add("claim %s", strings.TrimPrefix(filepath.Ext(path), "."))
	}
}

// claims are the files by which daemons have claimed devices of a host.
func claims(h *host) []string {
	h.c.t.Helper()
	var ns unix.Stat_t
	h.Must(func() error { return unix.Stat("/proc/thread-self/ns/net", &ns) })
	paths, _ := filepath.Glob(fmt.Sprintf("/run/flannel/overlayd/%d.*", ns.Ino)) // the pattern is well-formed
	return paths
}

// nodeText is the content of a node file, with words in the place of values that the model cannot know, and without the network config if that is of the
// networks of the file.
func nodeText(path, text string) string {
	all := strings.Split(strings.TrimSpace(text), "\n")
	lines := slices.DeleteFunc(slices.Clone(all), func(line string) bool {
		config, ok := strings.CutPrefix(line, "config ")
		var n control.Network
		return ok && json.Unmarshal([]byte(config), &n) == nil && !slices.ContainsFunc(n.Prefixes(), func(p netip.Prefix) bool {
			return !slices.Contains(all, "network "+p.String())
		})
	})
	for i, line := range lines {
		switch {
		case regexp.MustCompile(`^[0-9a-f]{32}$`).MatchString(line):
			lines[i] = "id"
		case strings.HasPrefix(line, "wrote "):
			env := strings.TrimSuffix(path, ".node")
			if info, err := os.Stat(env); err == nil && line == fmt.Sprintf("wrote %d", info.ModTime().UnixNano()) {
				lines[i] = "wrote " + filepath.Base(env)
			}
		}
	}
	return strings.Join(lines, ", ")
}

// keys returns every key below the prefix with its value and how long its lease is. Of the records of nodes
// it tells whose they are: names has the names of the hosts by their node IDs.
func (c *cluster) keys(names map[string]string) (lines []string) {
	c.t.Helper()
	got, err := c.client.Get(c.t.Context(), "", clientv3.WithPrefix())
	if err != nil {
		c.t.Fatal(err)
	}
	for _, kv := range got.Kvs {
		key, value, leased := string(kv.Key), string(kv.Value), ""
		if kv.Lease != 0 {
			ttl, err := c.client.TimeToLive(c.t.Context(), clientv3.LeaseID(kv.Lease))
			if err != nil {
				c.t.Fatal(err)
			}
			leased = " leased " + shortDuration(time.Duration(ttl.GrantedTTL)*time.Second)
		}
		if strings.Contains(key, "/overlayd/nodes/") {
			value = recordText(value, names)
		}
		lines = append(lines, fmt.Sprintf("key %s%s = %s", key, leased, value))
	}
	return lines
}

// shortDuration is a duration without the parts that are 0.
func shortDuration(d time.Duration) string {
	return regexp.MustCompile(`([hm])(0[ms])+$`).ReplaceAllString(d.String(), "$1")
}

// recordText tells whose a record is, if the record has everything that it should.
func recordText(value string, names map[string]string) string {
	var r struct {
		ID, Name, Boot, Nonce, Version, State string
		NetNS                                 uint64
		Start                                 time.Time
		V                                     int
	}
	name, _ := os.Hostname()
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err := json.Unmarshal([]byte(value), &r); err != nil || r.Name != name || r.Boot != strings.TrimSpace(string(boot)) ||
		r.Nonce == "" || r.State != "running" || r.NetNS == 0 || time.Since(r.Start).Abs() > time.Hour || r.V != 1 || names[r.ID] == "" {
		return value
	}
	return "record of " + names[r.ID]
}

// difference returns what have lacks of must, and has beyond must and may.
func difference(must, may, have []string) (diff []string) {
	left := map[string]int{}
	for _, line := range have {
		left[line]++
	}
	for _, line := range must {
		if left[line]--; left[line] < 0 {
			diff = append(diff, "lacks "+line)
		}
	}
	for _, line := range may {
		left[line]--
	}
	for line, n := range left {
		for range n {
			diff = append(diff, "has   "+line)
		}
	}
	slices.SortFunc(diff, func(a, b string) int { return strings.Compare(a[6:], b[6:]) })
	return diff
}
