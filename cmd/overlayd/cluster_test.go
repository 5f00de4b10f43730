package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// cluster is a real etcd and real overlayd processes on hosts made of network
// namespaces: host i has eth0 with 192.0.2.(2+i)/24, or 2001:db8::(2+i)/64, or
// both, and default offloads.
//
//	         under: bridge 192.0.2.1, etcd
//	       ┌────────────┴────────────┐
//	host 0: eth0 192.0.2.2    host 1: eth0 192.0.2.3   …
//	overlayd, flannel.1       overlayd, flannel.1
//	       │ pod0                    │ pod0
//	pod: eth0 <subnet>.2      pod: eth0 <subnet>.2
type cluster struct {
	t      *testing.T
	under  *netnstest.NS
	hosts  []*host
	client *clientv3.Client // speaks to etcd from the under namespace
	url    string
	path   string // the hosts' PATH, if not that of the test
	etcd   *process
	data   string // of etcd
}

// testNetwork leaves 10.5.64.0 and above to the leases that tests write by hand.
const testNetwork = `{"Network":"10.5.0.0/16","SubnetMax":"10.5.63.0","Backend":{"Type":"vxlan"}}`

// The prefixes of a cluster's underlay.
const (
	under4 = "192.0.2.0/24"
	under6 = "2001:db8::/64"
)

// newCluster starts etcd with config (none if it is empty) and makes n hosts
// on which nothing runs yet, on an IPv4 underlay.
func newCluster(t *testing.T, n int, config string) *cluster {
	t.Helper()
	return newClusterOn(t, []string{under4}, n, config)
}

// newClusterOn is newCluster with an underlay of these prefixes, by the first of which
// etcd is reached.
func newClusterOn(t *testing.T, under []string, n int, config string) *cluster {
	t.Helper()
	c := newHosts(t, under, n)
	c.startEtcd()
	if config != "" {
		c.put("/coreos.com/network/config", config)
	}
	return c
}

// newHosts is a cluster without etcd.
func newHosts(t *testing.T, under []string, n int) *cluster {
	t.Helper()
	c := &cluster{t: t}
	var namespaces []*netnstest.NS
	for i := range n {
		var addrs []netip.Addr
		for _, prefix := range under {
			addr := netip.MustParsePrefix(prefix).Addr().Next()
			for range i + 1 {
				addr = addr.Next()
			}
			addrs = append(addrs, addr)
		}
		namespaces = append(namespaces, c.addHost(addrs...).NS)
	}
	c.under = netnstest.LAN(t, under[0], namespaces...)
	for _, prefix := range under[1:] {
		netnstest.Number(c.under, prefix, namespaces...)
	}
	c.url = "http://" + netip.AddrPortFrom(netip.MustParsePrefix(under[0]).Addr().Next(), 2379).String()
	return c
}

// startEtcd starts an empty etcd, and connects to it.
func (c *cluster) startEtcd() {
	c.t.Helper()
	c.data = c.t.TempDir()
	c.runEtcd()
	c.connect()
}

// runEtcd starts etcd with the data that it has.
func (c *cluster) runEtcd() {
	c.t.Helper()
	c.etcd = start(c.t, c.under, "etcd", append(os.Environ(), asEtcd+"="+c.data+" "+c.url))
}

// addHost makes one more host, without links.
func (c *cluster) addHost(addrs ...netip.Addr) *host {
	c.t.Helper()
	h := &host{NS: netnstest.New(c.t), c: c, name: fmt.Sprintf("host%d", len(c.hosts)),
		subnetFile: filepath.Join(c.t.TempDir(), "subnet.env"), addr: addrs[0], addrs: addrs}
	c.hosts = append(c.hosts, h)
	return h
}

func (c *cluster) connect() {
	c.t.Helper()
	// The client waits for a second after a connection that is refused, so etcd has to listen first.
	address := strings.TrimPrefix(c.url, "http://")
	eventually(c.t, time.Minute, "etcd listens", func() error {
		return c.under.Do(func() error {
			conn, err := net.DialTimeout("tcp", address, time.Second)
			if err == nil {
				conn.Close()
			}
			return err
		})
	})
	var err error
	c.client, err = clientv3.New(clientv3.Config{Endpoints: []string{c.url}, Logger: zap.NewNop(), DialOptions: dialIn(c.under)})
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { c.client.Close() })
	c.waitEtcd()
}

// waitEtcd waits until etcd answers.
func (c *cluster) waitEtcd() {
	c.t.Helper()
	eventually(c.t, patience, "etcd answers", func() error {
		ctx, cancel := context.WithTimeout(c.t.Context(), time.Second)
		defer cancel()
		_, err := c.client.Get(ctx, "x")
		return err
	})
}

func (c *cluster) put(key, value string) {
	c.t.Helper()
	if _, err := c.client.Put(c.t.Context(), key, value); err != nil {
		c.t.Fatalf("put %s: %v", key, err)
	}
}

func (c *cluster) delete(key string) {
	c.t.Helper()
	if _, err := c.client.Delete(c.t.Context(), key); err != nil {
		c.t.Fatalf("delete %s: %v", key, err)
	}
}

// get returns a key's value, empty if it is missing.
func (c *cluster) get(key string) string {
	c.t.Helper()
	r, err := c.client.Get(c.t.Context(), key)
	if err != nil {
		c.t.Fatalf("get %s: %v", key, err)
	}
	if len(r.Kvs) == 0 {
		return ""
	}
	return string(r.Kvs[0].Value)
}

// host is one machine: its namespace, and its daemon if one runs.
type host struct {
	*netnstest.NS
	c          *cluster
	name       string
	addr       netip.Addr   // addrs[0]
	addrs      []netip.Addr // on the underlay, one per prefix
	subnetFile string
	daemon     *process
}

// overlayd runs overlayd on the host with exactly these arguments.
func (h *host) overlayd(args ...string) *process {
	h.c.t.Helper()
	return h.overlaydWith(nil, args...)
}

// overlaydWith is overlayd with more environment variables.
func (h *host) overlaydWith(env []string, args ...string) *process {
	h.c.t.Helper()
	name := h.name
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		name += " " + args[0]
	}
	return start(h.c.t, h.NS, name, append(append(h.c.env(), asOverlayd+"=1"), env...), args...)
}

// env is the environment of every program on a host.
func (c *cluster) env() []string {
	if c.path == "" {
		return os.Environ()
	}
	return append(os.Environ(), "PATH="+c.path)
}

// Run runs a command on the host, as netnstest.NS.Run does, with the host's PATH.
func (h *host) Run(name string, args ...string) string {
	h.c.t.Helper()
	return h.feed("", name, args...)
}

// feed is Run with text on the standard input.
func (h *host) feed(text, name string, args ...string) string {
	h.c.t.Helper()
	// exec.Command would search the PATH of the test.
	for _, dir := range filepath.SplitList(h.c.path) {
		if file := filepath.Join(dir, name); isFile(file) {
			name = file
			break
		}
	}
	cmd := exec.Command(name, args...)
	cmd.Env, cmd.Stdin = h.c.env(), strings.NewReader(text)
	var out []byte
	if err := h.Do(func() (err error) { out, err = cmd.CombinedOutput(); return err }); err != nil {
		h.c.t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return strings.TrimRight(string(out), "\n")
}

func isFile(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// start starts overlayd without waiting for it.
func (h *host) start(args ...string) *process {
	h.c.t.Helper()
	args = append([]string{"--etcd-endpoints", h.c.url, "--subnet-file", h.subnetFile}, args...)
	h.daemon = h.overlayd(args...)
	return h.daemon
}

// up starts overlayd and waits until it says that it is ready.
func (h *host) up(args ...string) {
	h.c.t.Helper()
	h.start(args...).waitLog(`msg=ready`, patience)
}

// env is one value of the subnet file: FLANNEL_SUBNET and so on.
func (h *host) env(key string) string {
	h.c.t.Helper()
	return h.envs(key)[key]
}

// envs waits until the subnet file is there and has key, and returns all values of that one reading.
func (h *host) envs(key string) (env map[string]string) {
	h.c.t.Helper()
	eventually(h.c.t, patience, h.subnetFile+" has "+key, func() (err error) {
		env, err = readEnv(h.subnetFile)
		if err == nil && env[key] == "" {
			err = fmt.Errorf("only %v", env)
		}
		return err
	})
	return env
}

func readEnv(path string) (map[string]string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	env := map[string]string{}
	for line := range strings.Lines(string(b)) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			env[k] = v
		}
	}
	return env, nil
}

// gateways returns the host's addresses towards its pods, IPv4 first, with the
// lengths of the subnets.
func (h *host) gateways() (all []netip.Prefix) {
	h.c.t.Helper()
	env := h.envs("FLANNEL_MTU")
	for _, key := range []string{"FLANNEL_SUBNET", "FLANNEL_IPV6_SUBNET"} {
		if env[key] != "" {
			all = append(all, netip.MustParsePrefix(env[key]))
		}
	}
	return all
}

// gateway is the first of gateways.
func (h *host) gateway() netip.Prefix {
	h.c.t.Helper()
	return h.gateways()[0]
}

// key is the store's key of the host's lease.
func (h *host) key() string {
	h.c.t.Helper()
	var l control.Lease
	for _, gw := range h.gateways() {
		if gw.Addr().Is4() {
			l.Subnet = gw.Masked()
		} else {
			l.IPv6Subnet = gw.Masked()
		}
	}
	return subnets + l.Key()
}

// pod is a workload behind a host, with an address out of each of the host's subnets.
type pod struct {
	*netnstest.NS
	addr  netip.Addr   // addrs[0]
	addrs []netip.Addr // IPv4 first
}

// pod makes the i-th pod behind h; MTU 0 is the overlay's.
func (h *host) pod(i, mtu int) *pod {
	h.c.t.Helper()
	p := &pod{NS: netnstest.New(h.c.t)}
	if mtu == 0 {
		fmt.Sscan(h.env("FLANNEL_MTU"), &mtu)
	}
	name := fmt.Sprintf("pod%d", i)
	netnstest.Link(h.NS, name, p.NS, "eth0")
	setMTU := func(link string) func() error {
		return func() error {
			l, err := netlink.LinkByName(link)
			if err != nil {
				return err
			}
			return netlink.LinkSetMTU(l, mtu)
		}
	}
	h.Must(setMTU(name))
	p.Must(setMTU("eth0"))
	for _, gw := range h.gateways() {
		addr := gw.Addr()
		for range i + 1 {
			addr = addr.Next()
		}
		p.addrs = append(p.addrs, addr)
		h.Addr(name, netip.PrefixFrom(gw.Addr(), gw.Addr().BitLen()).String())
		h.Must(func() error { return addRoute(name, netip.PrefixFrom(addr, addr.BitLen())) })
		p.Addr("eth0", netip.PrefixFrom(addr, gw.Bits()).String())
		p.DefaultRoute(gw.Addr().String())
	}
	p.addr = p.addrs[0]
	return p
}

// upPair starts overlayd on the first two hosts, in these modes, with a pod behind each,
// and waits until the pods reach each other.
func (c *cluster) upPair(modes [2]string, args ...string) (a, b *pod) {
	c.t.Helper()
	for i, mode := range modes {
		c.hosts[i].up(append([]string{"--dataplane", mode}, args...)...)
	}
	a, b = c.hosts[0].pod(0, 0), c.hosts[1].pod(0, 0)
	warmUp(c.t, a, b)
	return a, b
}

func addRoute(link string, dst netip.Prefix) error {
	l, err := netlink.LinkByName(link)
	if err != nil {
		return err
	}
	d, err := netlink.ParseIPNet(dst.String())
	if err != nil {
		return err
	}
	return netlink.RouteReplace(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: d, Scope: netlink.SCOPE_LINK})
}

// durationFrom returns the duration in an environment variable, or the usual one.
func durationFrom(t *testing.T, variable string, usual time.Duration) time.Duration {
	t.Helper()
	v, ok := os.LookupEnv(variable)
	if !ok {
		return usual
	}
	d, err := time.ParseDuration(v)
	if err != nil {
		t.Fatalf("%s: %v", variable, err)
	}
	return d
}
