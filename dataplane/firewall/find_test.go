package firewall

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// The addresses of a world.
const (
	podIP, peerIP, hostIP, nodeIP = "10.5.1.2", "10.5.2.2", "192.0.2.2", "192.0.2.3"
	tunnelPort                    = 8472
)

// world is a host that forwards between a pod and, by something that stands for the overlay device, a pod of a peer;
// a node of the underlay is behind eth0.
type world struct{ host, pod, peer, node *netnstest.NS }

func newWorld(t *testing.T) world {
	t.Helper()
	w := world{netnstest.New(t), netnstest.New(t), netnstest.New(t), netnstest.New(t)}
	for _, l := range []struct {
		name       string
		to         *netnstest.NS
		addr, peer string
	}{{"cni0", w.pod, "10.5.1.1/24", podIP + "/24"}, {"flannel.1", w.peer, "10.5.2.1/24", peerIP + "/24"}, {"eth0", w.node, hostIP + "/24", nodeIP + "/24"}} {
		netnstest.Link(w.host, l.name, l.to, "eth0")
		w.host.Addr(l.name, l.addr)
		l.to.Addr("eth0", l.peer)
		l.to.DefaultRoute(strings.TrimSuffix(l.addr, "/24"))
	}
	w.host.Must(func() error { return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0) })
	return w
}

// load runs the lines of a script: those that begin with the name of a program, or else the text of one nft file.
func (w world) load(t *testing.T, script string) {
	t.Helper()
	if strings.HasPrefix(strings.TrimSpace(script), "table") {
		w.host.Run("sh", "-c", "nft -f - <<'E'\n"+script+"\nE")
		return
	}
	w.host.Run("sh", "-ec", script)
}

// passes sends the packet for real and reports whether it, and an answer if it is of TCP, arrives in time.
func (w world) passes(t *testing.T, p Packet, arrival time.Duration) bool {
	t.Helper()
	from, to := w.pod, w.peer
	switch p.Path {
	case Received:
		from, to = w.node, w.host
	case Sent:
		from, to = w.host, w.node
	}
	if p.Path == Forwarded && p.Src.String() == peerIP {
		from, to = w.peer, w.pod
	}
	if p.Protocol == unix.IPPROTO_TCP {
		return connects(t, from, to, p, arrival)
	}
	arrived := false
	to.Must(func() error {
		l, err := net.ListenUDP("udp4", &net.UDPAddr{IP: p.Dst.AsSlice(), Port: int(p.DstPort)})
		if err != nil {
			return err
		}
		defer l.Close()
		if err := from.Do(func() error { return send(p) }); err != nil {
			if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ECONNREFUSED) {
				return nil
			}
			return err
		}
		l.SetReadDeadline(time.Now().Add(arrival))
		_, _, err = l.ReadFrom(make([]byte, 10))
		arrived = err == nil
		return nil
	})
	return arrived
}

// A packet that arrives does so within patience; for one that is dropped nobody waits that long.
const (
	patience = 5 * time.Second
	silence  = 100 * time.Millisecond
)

func send(p Packet) error {
	c, err := net.DialUDP("udp4", &net.UDPAddr{IP: p.Src.AsSlice(), Port: int(p.SrcPort)}, &net.UDPAddr{IP: p.Dst.AsSlice(), Port: int(p.DstPort)})
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.Write([]byte("x"))
	return err
}

func connects(t *testing.T, from, to *netnstest.NS, p Packet, arrival time.Duration) bool {
	t.Helper()
	var l net.Listener
	to.Must(func() (err error) {
		l, err = net.Listen("tcp4", netip.AddrPortFrom(p.Dst, p.DstPort).String())
		return err
	})
	defer l.Close()
	d := net.Dialer{Timeout: arrival, LocalAddr: &net.TCPAddr{IP: p.Src.AsSlice(), Port: int(p.SrcPort)}}
	return from.Do(func() error {
		c, err := d.Dial("tcp4", l.Addr().String())
		if err == nil {
			c.(*net.TCPConn).SetLinger(0)
			c.Close()
		}
		return err
	}) == nil
}

func packetsOf(path Path) []Packet {
	pod, peer := netip.MustParseAddr(podIP), netip.MustParseAddr(peerIP)
	switch tunnel := Tunnel("eth0", netip.MustParseAddr(hostIP), netip.MustParseAddr(nodeIP), tunnelPort); path {
	case Received:
		return tunnel[:1]
	case Sent:
		return tunnel[1:]
	}
	return []Packet{Through(pod, peer, "cni0", "flannel.1"), Through(peer, pod, "flannel.1", "cni0")}
}

// chain is a table with one base chain.
func chain(family, hook, policy string, rules ...string) string {
	return "table " + family + " fw {\n chain c { type filter hook " + hook + " priority 0; policy " + policy + ";\n" + strings.Join(rules, "\n") + "\n }\n}"
}

// found is what Find says of a packet: "" that it passes, "maybe", or "drop".
func found(drops []Drop, p Packet) string {
	is := ""
	for _, d := range drops {
		if d.Packet == p && d.Sure {
			return "drop"
		} else if d.Packet == p {
			is = "maybe"
		}
	}
	return is
}

// cases are packet filters, and what becomes of the packets of a path: of the one from the pod and the one to it, if it is
// forwarded.
func cases() map[string]struct {
	path   Path
	script string
	want   string
} {
	type c = struct {
		path   Path
		script string
		want   string
	}
	return map[string]c{
		"none":                     {Forwarded, "true", ""},
		"policy, inet":             {Forwarded, chain("inet", "forward", "drop"), "drop"},
		"policy, ip":               {Forwarded, chain("ip", "forward", "drop"), "drop"},
		"policy, ip6":              {Forwarded, chain("ip6", "forward", "drop"), ""},
		"policy of another hook":   {Forwarded, chain("inet", "input", "drop") + "\n" + strings.Replace(chain("inet", "output", "drop"), " c ", " d ", 1), ""},
		"accepts the network":      {Forwarded, chain("inet", "forward", "drop", "ip saddr 10.5.0.0/16 accept"), ""},
		"accepts established":      {Forwarded, chain("inet", "forward", "drop", "ct state established,related accept", "ct status dnat accept"), "drop"},
		"accepts new":              {Forwarded, chain("inet", "forward", "drop", "ct state { new, established } accept"), ""},
		"accepts one way":          {Forwarded, chain("inet", "forward", "drop", "ct state established accept", "ip daddr 10.5.1.0/24 accept"), "drop "},
		"accepts by interface":     {Forwarded, chain("inet", "forward", "drop", `ct state established accept`, `iifname "flannel.1" accept`, `oifname "flannel.*" accept`), ""},
		"accepts by index":         {Forwarded, chain("inet", "forward", "drop", "iif { cni0, lo } oif flannel.1 accept", "oif cni0 accept"), ""},
		"accepts other interface":  {Forwarded, chain("inet", "forward", "drop", `iifname { "eth0", "lo" } accept`), "drop"},
		"accepts in a set":         {Forwarded, chain("inet", "forward", "drop", `iifname { "cni0", "flannel.1" } oifname != "eth0" accept`), ""},
		"accepts in ranges":        {Forwarded, chain("ip", "forward", "drop", "ip saddr { 10.4.0.0/16, 10.5.0.0-10.5.9.9 } accept"), ""},
		"accepts beside":           {Forwarded, chain("ip", "forward", "drop", "ip saddr { 10.4.0.0/16, 10.6.0.0/15 } accept", "tcp dport 22 accept", "udp dport 1-65535 accept"), "drop"},
		"accepts a concatenation":  {Forwarded, chain("ip", "forward", "drop", "ip saddr . ip daddr { 10.5.1.2 . 10.5.2.2, 10.5.2.2 . 10.5.1.2 } accept"), ""},
		"rejects at the end":       {Forwarded, chain("inet", "forward", "accept", "ct state established,related accept", "ct state invalid drop", "reject with icmpx admin-prohibited"), "drop"},
		"rejects only UDP":         {Forwarded, chain("inet", "forward", "accept", "meta l4proto udp reject", "meta l4proto { icmp, igmp } drop"), ""},
		"a limit":                  {Forwarded, chain("inet", "forward", "accept", "limit rate over 1/day burst 1 packets drop"), "maybe"},
		"a limit that accepts":     {Forwarded, chain("inet", "forward", "drop", "limit rate 100/second accept"), "maybe"},
		"an unknown mark":          {Forwarded, chain("inet", "forward", "accept", "meta mark 7 drop"), "maybe"},
		"a map of verdicts":        {Forwarded, "table inet fw {\n chain z { drop\n }\n chain c { type filter hook forward priority 0; policy accept;\n iifname vmap { \"eth0\" : accept, \"cni0\" : jump z, \"flannel.1\" : goto z }\n }\n}", "drop"},
		"a jump that comes back":   {Forwarded, "table inet fw {\n chain z { ip saddr 10.5.0.0/16 return\n drop\n }\n chain c { type filter hook forward priority 0; policy drop;\n jump z\n accept\n }\n}", ""},
		"a goto that ends":         {Forwarded, "table inet fw {\n chain z { ip saddr 10.9.0.0/16 drop\n }\n chain c { type filter hook forward priority 0; policy drop;\n goto z\n accept\n }\n}", "drop"},
		"prerouting":               {Forwarded, chain("inet", "prerouting", "accept", `iifname "cni0" ip daddr != 10.9.0.0/16 drop`), "drop "},
		"postrouting":              {Forwarded, chain("ip", "postrouting", "accept", `oifname "cni0" drop`), " drop"},
		"iptables-nft policy":      {Forwarded, "iptables -P FORWARD DROP", "drop"},
		"iptables-nft like Docker": {Forwarded, "iptables -P FORWARD DROP; iptables -A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT; iptables -A FORWARD -o eth0 -j ACCEPT", "drop"},
		"iptables-nft accepts":     {Forwarded, "iptables -P FORWARD DROP; iptables -N X; iptables -A X -s 10.5.0.0/16 -m comment --comment ours -j ACCEPT; iptables -A FORWARD -j X", ""},
		"iptables-nft REJECT":      {Forwarded, "iptables -A FORWARD -i cni0 -p tcp -m multiport --dports 22,50000:60000 -j REJECT", "drop "},
		"legacy policy":            {Forwarded, "iptables-legacy -P FORWARD DROP", "drop"},
		"legacy chain":             {Forwarded, "iptables-legacy -N X; iptables-legacy -A X -d 10.5.2.0/24 -j DROP; iptables-legacy -A FORWARD -j LOG; iptables-legacy -A FORWARD -j X", "drop "},
		"legacy chain comes back":  {Forwarded, "iptables-legacy -N X; iptables-legacy -A X ! -i eth+ -j RETURN; iptables-legacy -A X -j DROP; iptables-legacy -A FORWARD -g X; iptables-legacy -P FORWARD ACCEPT", ""},
		"legacy return to policy":  {Forwarded, "iptables-legacy -P FORWARD DROP; iptables-legacy -A FORWARD -s 10.5.1.0/24 -j RETURN; iptables-legacy -A FORWARD -j ACCEPT", "drop "},
		"legacy by interface":      {Forwarded, "iptables-legacy -P FORWARD DROP; iptables-legacy -A FORWARD -i flannel.+ -j ACCEPT; iptables-legacy -A FORWARD -o flannel.1 ! -d 10.9.0.0/16 -j ACCEPT", ""},
		"legacy state":             {Forwarded, "iptables-legacy -A FORWARD -m conntrack --ctstate NEW -j DROP", "drop"},
		"legacy mangle":            {Forwarded, "iptables-legacy -t mangle -A PREROUTING -i cni0 -p tcp --dport 50000:60000 -j DROP", "drop "},
		"legacy limit":             {Forwarded, "iptables-legacy -P FORWARD DROP; iptables-legacy -A FORWARD -m limit --limit 100/s -j ACCEPT", "maybe"},

		"the port":                  {Received, chain("inet", "input", "accept", "udp dport 8472 drop"), "drop"},
		"the port in a set":         {Received, chain("ip", "input", "accept", "udp dport { 53, 4789, 8472 } drop"), "drop"},
		"another port":              {Received, chain("inet", "input", "accept", "udp dport { 53, 4789 } drop", "tcp dport 8472 drop", "udp sport 8472 drop"), ""},
		"all but ssh":               {Received, chain("inet", "input", "drop", "ct state established,related accept", "tcp dport 22 accept", "meta l4proto icmp accept"), "drop"},
		"all but the port":          {Received, chain("inet", "input", "drop", "udp dport 8000-9000 accept"), ""},
		"loopback by index":         {Received, chain("inet", "input", "drop", "iif lo accept", "ct state vmap { established : accept, related : accept, invalid : drop }", "tcp dport 22 accept"), "drop"},
		"loopback by type":          {Received, chain("inet", "input", "drop", "iiftype loopback accept", `meta iifkind "vrf" accept`), "maybe"},
		"type of interface":         {Received, chain("inet", "input", "drop", "iiftype ether oif 0 accept"), ""},
		"no type of no interface":   {Received, chain("inet", "input", "drop", "oiftype != loopback accept", "oifgroup != 5 accept"), "drop"},
		"interface by index":        {Received, chain("inet", "input", "drop", "iif != lo udp dport 8472 accept"), ""},
		"interfaces by index":       {Received, chain("inet", "input", "accept", "iif vmap { lo : accept, eth0 : drop }"), "drop"},
		"interface and port":        {Received, chain("inet", "input", "drop", "iif . udp dport { eth0 . 8472 } accept"), ""},
		"group of interface":        {Received, "ip link set eth0 group 7; nft '" + chain("inet", "input", "drop", "iifgroup default accept", "iifgroup { 8, 9 } accept") + "'", "drop"},
		"another group":             {Received, chain("inet", "input", "accept", "iifgroup 7 drop"), ""},
		"broadcast":                 {Received, chain("inet", "input", "accept", "meta pkttype { broadcast, multicast } drop", "meta pkttype != host drop"), ""},
		"unicast":                   {Received, chain("inet", "input", "accept", "meta pkttype host reject"), "drop"},
		"type of address":           {Received, chain("inet", "input", "drop", "fib saddr type != unicast drop", "fib daddr type { broadcast, anycast, multicast } drop", "fib daddr type local accept"), ""},
		"not to this host":          {Received, chain("inet", "input", "accept", "fib daddr type != local drop"), ""},
		"reverse path":              {Received, chain("inet", "prerouting", "accept", "fib saddr . iif oif missing drop"), "maybe"},
		"like ufw":                  {Received, "iptables -P INPUT DROP; iptables -N not; iptables -A not -m addrtype --dst-type LOCAL -j RETURN; iptables -A not -m addrtype --dst-type MULTICAST -j RETURN; iptables -A not -j DROP; iptables -A INPUT -j not; iptables -A INPUT -p udp --dport 8472 -j ACCEPT", ""},
		"iptables, broadcast":       {Received, "iptables -A INPUT -m pkttype --pkt-type broadcast -j DROP; iptables -A INPUT -m addrtype ! --src-type UNICAST -j DROP", ""},
		"iptables, by interface":    {Received, "iptables -A INPUT -m addrtype --dst-type LOCAL --limit-iface-in -j DROP", "maybe"},
		"legacy by type":            {Received, "iptables-legacy -A INPUT -m addrtype --dst-type LOCAL -m pkttype ! --pkt-type multicast -j DROP", "drop"},
		"fragments":                 {Received, chain("ip", "input", "accept", "ip frag-off & 0x1fff != 0 drop"), ""},
		"bits that may be set":      {Received, chain("ip", "input", "accept", "ip frag-off & 0x4000 != 0 drop", "ip frag-off 0x1 drop"), "maybe"},
		"iptables, fragments":       {Received, "iptables -A INPUT -f -j DROP", ""},
		"from this node":            {Received, chain("inet", "input", "accept", "ip saddr 192.0.2.3 udp dport 8472 drop"), "drop"},
		"from another node":         {Received, chain("inet", "input", "accept", "ip saddr 192.0.2.4 udp dport 8472 drop"), ""},
		"raw":                       {Received, "iptables -t raw -A PREROUTING -p udp --dport 8472 -j DROP", "drop"},
		"legacy input":              {Received, "iptables-legacy -A INPUT -p udp -m udp --dport 8472 -j DROP", "drop"},
		"legacy input, other port":  {Received, "iptables-legacy -A INPUT -p udp -m udp ! --dport 8472 -j DROP", ""},
		"ingress of the interface":  {Received, "table netdev fw {\n chain c { type filter hook ingress device eth0 priority 0;\n udp dport 8472 drop\n }\n}", "drop"},
		"ingress of another":        {Received, "table netdev fw {\n chain c { type filter hook ingress device cni0 priority 0;\n udp dport 8472 drop\n }\n}", ""},
		"ingress of family inet":    {Received, "table inet fw {\n chain c { type filter hook ingress device eth0 priority 0;\n udp dport 8472 drop\n }\n}", "drop"},
		"output":                    {Sent, chain("inet", "output", "accept", "udp dport 8472 drop"), "drop"},
		"output by another":         {Sent, chain("inet", "output", "accept", `oifname "cni0" udp dport 8472 drop`), ""},
		"output by index":           {Sent, chain("inet", "output", "drop", "oif lo accept", "meta pkttype broadcast accept"), "maybe"},
		"output by index alone":     {Sent, chain("inet", "output", "drop", "oif lo accept", "fib daddr type local accept"), "drop"},
		"output, no interface":      {Sent, chain("inet", "output", "accept", `iifname "eth0" drop`), ""},
		"output of iptables":        {Sent, "iptables -A OUTPUT -o eth0 -p udp --dport 8472 -j REJECT", "drop"},
		"output, policy of iptable": {Sent, "iptables-legacy -P OUTPUT DROP", "drop"},
		"egress of the interface":   {Sent, "table netdev fw {\n chain c { type filter hook egress device eth0 priority 0;\n udp dport 8472 drop\n }\n}", "drop"},
	}
}

// TestFind: of every packet filter Find says what it does, and a real packet agrees.
func TestFind(t *testing.T) {
	t.Parallel()
	for name, c := range cases() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.load(t, c.script)
			packets := packetsOf(c.path)
			var drops []Drop
			w.host.Must(func() (err error) { drops, err = Find(packets...); return err })
			for i, p := range packets {
				want := c.want
				if both := strings.Split(c.want, " "); len(both) == 2 {
					want = both[i]
				}
				is := found(drops, p)
				if is != want {
					t.Errorf("packet %d: %q, want %q: %+v", i, is, want, drops)
				}
				switch {
				case is == "drop" && w.passes(t, p, silence):
					t.Errorf("packet %d is said to be dropped, and passes", i)
				case is == "" && !strings.Contains(c.want, " ") && !w.passes(t, p, patience):
					t.Errorf("packet %d is said to pass, and is dropped", i)
				}
			}
		})
	}
}
