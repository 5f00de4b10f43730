package main

import (
	"os/exec"
	"regexp"
	"slices"
	"strings"
)

// fault is something that somebody else does to what overlayd keeps on a host.
type fault struct {
	// do is a command on the first of two hosts. In it SUBNET, BASE, SUBNET6 and BASE6 are the peer's subnets and
	// their first addresses, NET and NET6 the networks, and FILE is the subnet file.
	do    string
	quiet bool // nothing that overlayd keeps has changed when the command has ended: there may be no line about it
}

// driftFaults are the faults of F16 to F18 that overlayd repairs by itself (facts/reliability.md), on a dual-stack host.
func driftFaults(mode string, filter packetFilter) map[string]fault {
	faults := map[string]fault{
		"address deleted":    {do: "ip addr flush dev flannel.1 scope global"},
		"address added":      {do: "ip addr add 10.5.201.1/32 dev flannel.1"},
		"link down":          {do: "ip link set flannel.1 down"},
		"link deleted":       {do: "ip link del flannel.1"},
		"MTU changed":        {do: "ip link set flannel.1 mtu 1300"},
		"alias changed":      {do: "ip link set flannel.1 alias mine"},
		"renamed":            {do: "ip link set flannel.1 name xx1"},
		"ip_forward off":     {do: "sysctl -qw net.ipv4.ip_forward=0"},
		"forwarding6 off":    {do: "sysctl -qw net.ipv6.conf.all.forwarding=0"},
		"device settings":    {do: "sysctl -qw net.ipv4.conf.flannel/1.forwarding=0 net.ipv4.conf.flannel/1.rp_filter=1 net.ipv4.conf.flannel/1.accept_redirects=1"},
		"device settings 6":  {do: "sysctl -qw net.ipv6.conf.flannel/1.forwarding=0 net.ipv6.conf.flannel/1.accept_ra=2"},
		"ruleset flushed":    {do: "nft flush ruleset"},
		"subnet file gone":   {do: "rm FILE"},
		"subnet file torn":   {do: "truncate -s 20 FILE"},
		"subnet file other":  {do: "sed -i 's/MTU=.*/MTU=9000/' FILE"},
		"underlay MTU":       {do: "ip link set eth0 mtu 1400; sleep 0.4; ip link set eth0 mtu 1500", quiet: true},
		"underlay down":      {do: "ip link set eth0 down; sleep 0.2; ip link set eth0 up; " + readdress, quiet: true},
		"underlay addresses": {do: "ip addr flush dev eth0 scope global; sleep 0.2; " + readdress, quiet: true},
	}
	for name, do := range map[packetFilter]map[string]string{
		filterIPT: {
			"masquerade gone": "iptables -t nat -F POSTROUTING; ip6tables -t nat -F POSTROUTING",
			"forward gone":    "iptables -F FORWARD; ip6tables -F FORWARD",
			"chains emptied":  "iptables -t nat -S | sed -n 's/^-N \\(OVERLAYD.*\\)/\\1/p' | xargs -n1 iptables -t nat -F",
		},
		filterNFT: {
			"nft table gone": "nft delete table ip overlayd-1",
			"one rule gone":  "nft -a list chain ip overlayd-1 postrouting | sed -n 's/.*# handle //p' | tail -1 | xargs nft delete rule ip overlayd-1 postrouting handle",
			"rule added":     "nft insert rule ip6 overlayd-1 postrouting accept",
		},
	}[filter] {
		faults[name] = fault{do: do}
	}
	own := map[string]string{
		"route deleted":   "ip route del NET metric 1048576",
		"route 6 deleted": "ip route del NET6 metric 1048576",
		"route replaced":  "ip route replace NET via 192.0.2.1 metric 1048576; sleep 0.3; ip route del NET via 192.0.2.1",
		"moved away":      "unshare -n sleep 2 >/dev/null 2>&1 & " + unshared + "ip link set flannel.1 netns $!",
	}
	if mode == modeKernel {
		own = map[string]string{
			"route deleted":        "ip route del SUBNET",
			"route 6 deleted":      "ip route del SUBNET6",
			"route altered":        "ip route replace SUBNET via BASE dev flannel.1 onlink",
			"nexthops deleted":     "ip nexthop flush proto 211",
			"neighbour deleted":    "ip neigh del BASE dev flannel.1",
			"neighbour 6 deleted":  "ip neigh del BASE6 dev flannel-v6.1",
			"neighbour altered":    "ip neigh replace BASE lladdr 0e:00:00:00:00:99 dev flannel.1 nud permanent",
			"neighbour not fixed":  "ip neigh replace BASE lladdr 0e:00:00:00:00:99 dev flannel.1 nud stale",
			"FDB deleted":          "bridge fdb show dev flannel.1 | sed -n 's/ .*//p' | xargs -n1 -I{} bridge fdb del {} dev flannel.1",
			"FDB altered":          "bridge fdb show dev flannel.1 | sed -n 's/ .*//p' | xargs -n1 -I{} bridge fdb replace {} dev flannel.1 dst 192.0.2.99",
			"FDB entry added":      "bridge fdb append 0e:00:00:00:00:97 dev flannel.1 dst 192.0.2.98",
			"MAC changed":          "ip link set flannel.1 address 0e:00:00:00:00:98",
			"learning on":          "ip link set flannel.1 type vxlan learning",
			"IPv6 device deleted":  "ip link del flannel-v6.1",
			"IPv6 device set down": "ip link set flannel-v6.1 down",
		}
	}
	for name, do := range own {
		faults[name] = fault{do: do}
	}
	return faults
}

// readdress gives the underlay of the first host what it lost.
const readdress = "ip addr replace 192.0.2.2/24 dev eth0; ip -6 addr replace 2001:db8::2/64 dev eth0 nodad; ip route replace default via 192.0.2.1"

// numbers are what the kernel chooses again for each new object, or what says how far it is with it.
var numbers = regexp.MustCompile(`^\d+: |nhid \d+ |^id \d+ |(valid|preferred)_lft \S+|group default |qdisc \S+|(lo|proto-down) |tentative|(src|hoplimit) \S+`)

// kept returns what overlayd keeps on a host, but for numbers of the kernel's choice.
func (h *host) kept() string {
	var out []byte
	h.Must(func() (err error) {
		out, err = exec.Command("sh", "-c", `for d in flannel.1 flannel-v6.1; do
			ip -o -d link show $d | sed 's/.* mtu/mtu/;s/state [A-Z]*//;s/if[0-9]*//'; ip -o addr show dev $d scope global
			ip neigh show dev $d nud permanent; ip -6 neigh show dev $d nud permanent; bridge fdb show dev $d
			sysctl net.ipv4.conf.$(echo $d | tr . /) net.ipv6.conf.$(echo $d | tr . /) | grep -E 'forwarding|rp_filter|accept_re|accept_ra '
		done 2>/dev/null; ip route show proto 211; ip -6 route show proto 211; ip nexthop show proto 211
		sysctl net.ipv4.ip_forward net.ipv6.conf.all.forwarding; cat "$1"
		for t in iptables ip6tables; do $t-save | grep -e '-A.*OVERLAYD' | sed "s/^/$t /"; done
		nft list tables | grep overlayd- | grep -v 'ovl\.up' | while read t; do nft -s list $t | sed "s/^/$t /"; done 2>/dev/null; true`, "sh", h.subnetFile).Output()
		return err
	})
	var lines []string
	for line := range strings.Lines(string(out)) {
		for _, l := range elementsOf(line) {
			lines = append(lines, strings.Join(strings.Fields(numbers.ReplaceAllString(l, "")), " "))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// elementsOf gives each element of a set that nft lists a line of its own, whatever stands before and behind it.
func elementsOf(line string) []string {
	if !strings.HasPrefix(line, "table ") {
		return []string{line}
	}
	f := strings.Fields(line)
	table, rest := strings.Join(f[:3], " "), strings.Join(f[3:], " ")
	parts := strings.Split(strings.TrimSuffix(strings.TrimPrefix(rest, "elements = { "), " }"), ",")
	for i := range parts {
		parts[i] = table + " " + parts[i]
	}
	return slices.DeleteFunc(parts, func(p string) bool { return p == table+" " })
}
