package main

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/overlayd/overlayd/cmd/internal/leases"
	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/etcd"
	"github.com/overlayd/overlayd/control/etcd/embedded"
	"github.com/overlayd/overlayd/dataplane"
)

// leaseBench is a real etcd with a network config, and the lease commands on it.
type leaseBench struct {
	t      *testing.T
	url    string
	client *clientv3.Client
}

func newLeaseBench(t *testing.T, config string) *leaseBench {
	t.Helper()
	dir, err := os.MkdirTemp("", "lease") // t.TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	b := &leaseBench{t: t, url: "unix://" + filepath.Join(dir, "sock")}
	server, err := embedded.Start(t.Context(), embedded.Config{Dir: filepath.Join(dir, "data"), ListenClient: b.url, NoFsync: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Stop() })
	if b.client, err = clientv3.New(clientv3.Config{Endpoints: []string{b.url}, Logger: zap.NewNop()}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.client.Close() })
	b.put("/coreos.com/network/config", config)
	return b
}

func (b *leaseBench) put(key, value string) {
	b.t.Helper()
	if _, err := b.client.Put(b.t.Context(), key, value); err != nil {
		b.t.Fatal(err)
	}
}

// run runs `overlayd lease ...` and returns its output, or its error.
func (b *leaseBench) run(args ...string) (string, error) {
	root := newRootCommand()
	var out strings.Builder
	root.SetOut(&out)
	root.SetArgs(append([]string{"lease", args[0], "--etcd-endpoints", b.url}, args[1:]...))
	err := root.ExecuteContext(b.t.Context())
	return out.String(), err
}

// says fails unless a command prints this text.
func (b *leaseBench) says(want string, args ...string) {
	b.t.Helper()
	if got, err := b.run(args...); err != nil || strings.TrimSpace(got) != want {
		b.t.Errorf("lease %v: %q, %v, want %q", args, got, err, want)
	}
}

// fails fails unless a command ends with an error that has this text.
func (b *leaseBench) fails(want string, args ...string) {
	b.t.Helper()
	if got, err := b.run(args...); err == nil || !strings.Contains(err.Error(), want) {
		b.t.Errorf("lease %v: %q, %v, want an error with %q", args, got, err, want)
	}
}

// acquire gets a lease of node number i, which lives until the test ends.
func (b *leaseBench) acquire(i int, previous ...string) control.Lease {
	b.t.Helper()
	s, err := etcd.Open(b.t.Context(), etcd.Config{Endpoints: []string{b.url}})
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { s.Close() })
	ip, ip6 := netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), netip.MustParseAddr(fmt.Sprintf("2001:db8::%d", i))
	n := control.Node{ID: fmt.Sprint(i), Name: "host", PublicIP: ip, PublicIPv6: ip6}
	for _, p := range previous {
		n.Previous = append(n.Previous, netip.MustParsePrefix(p))
	}
	l, err := s.Acquire(b.t.Context(), n, []dataplane.VTEP{{Addr: ip, MAC: [6]byte{2, 4, 5: byte(i)}, VNI: 1}, {Addr: ip6, MAC: [6]byte{2, 6, 5: byte(i)}, VNI: 1}})
	if err != nil {
		b.t.Fatal(err)
	}
	return l
}

func TestLeaseCommands(t *testing.T) {
	t.Parallel()
	b := newLeaseBench(t, `{"Network":"10.5.0.0/16"}`)
	b.says("reserved 10.5.34.0/24 for 192.0.2.1", "reserve", "10.5.34.0/24", "--public-ip", "192.0.2.1")
	b.fails("belongs to 192.0.2.1", "reserve", "10.5.34.0/24", "--public-ip", "192.0.2.2")
	b.fails("does not fit the network", "reserve", "10.6.34.0/24", "--public-ip", "192.0.2.2")
	if l := b.acquire(1); l.Key() != "10.5.34.0-24" || l.Handle != 0 {
		t.Errorf("the node acquired %+v", l)
	}
	b.acquire(2, "10.5.9.0/24")
	b.put(subnets+"10.5.40.0-24", `{"PublicIP":"192.0.2.7","PublicIPv6":null}`)
	b.put(subnets+"gar\x1b[31mbage", "x")
	b.put(subnets+"10.5.8.0-23", `{"PublicIP":"192.0.2.8","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"02:04:00:00:00:08"}}`)
	got, err := b.run("list")
	want := `SUBNET        PUBLIC-IP  BACKEND  VNI  VTEP-MAC           EXPIRES-IN  STATE     ALIVE    NODE
10.5.8.0/23   192.0.2.8  vxlan    1    02:04:00:00:00:08  reserved    refused   unknown  -
10.5.9.0/24   192.0.2.2  vxlan    1    02:04:00:00:00:02  24h0m0s     used      yes      host
10.5.34.0/24  192.0.2.1  vxlan    1    02:04:00:00:00:01  reserved    reserved  yes      host
10.5.40.0/24  192.0.2.7  -        -    -                  reserved    reserved  unknown  -

NOT USED         STATE       EXPIRES-IN  REASON
10.5.8.0-23      refused     reserved    subnet 10.5.8.0/23 is not of length 24, which the network config has, nor of one that it is known to have had
gar\x1b[31mbage  unreadable  never       key "gar\\x1b[31mbage": "gar\\x1b[31mbage" is not <address>-<length>
`
	if err != nil || regexp.MustCompile("23h59m5[0-9]s").ReplaceAllString(got, "24h0m0s  ") != want {
		t.Errorf("list: %v\n%s\nwant\n%s", err, got, want)
	}
	b.says("reservation of 10.5.34.0/24 ended: 192.0.2.1 keeps it as a lease", "release", "10.5.34.0/24")
	b.fails("is a lease of 192.0.2.1 and no reservation", "release", "10.5.34.0/24")
	b.says("reservation of 10.5.40.0/24 ended: the subnet is free", "release", "10.5.40.0-24")
	b.says("revoked 10.5.34.0/24", "revoke", "10.5.34.0/24")
	b.says(`revoked gar\x1b[31mbage`, "revoke", "gar\x1b[31mbage")
	b.fails(`no entry for "10.5.34.0/24"`, "revoke", "10.5.34.0/24")
	if l := b.acquire(1, "10.5.34.0/24"); l.Key() == "10.5.34.0-24" {
		t.Error("the node got the revoked subnet again")
	}
}

func TestLeaseListJSON(t *testing.T) {
	t.Parallel()
	b := newLeaseBench(t, `{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd10:5::/48"}`)
	if out, err := b.run("list", "-o", "json"); err != nil || out != "[]\n" {
		t.Errorf("of nothing: %q, %v", out, err)
	}
	b.says("reserved 10.5.34.0/24,fd10:5:0:34::/64 for 192.0.2.9,2001:db8::9", "reserve", "10.5.34.0/24,fd10:5:0:34::/64",
		"--public-ip", "192.0.2.9", "--public-ipv6", "2001:db8::9")
	l := b.acquire(1, "10.5.9.0/24", "fd10:5:0:9::/64")
	b.put(subnets+"10.5.50.0-24", "x")
	out, err := b.run("list", "-o", "json")
	if err != nil {
		t.Fatal(err)
	}
	var rows []leases.Row
	if err := json.Unmarshal([]byte(out), &rows); err != nil || len(rows) != 3 {
		t.Fatalf("%v: %s", err, out)
	}
	if r := rows[0]; r.Key != l.Key() || r.Subnet != "10.5.9.0/24" || r.IPv6Subnet != "fd10:5:0:9::/64" || r.PublicIP != "192.0.2.1" ||
		r.PublicIPv6 != "2001:db8::1" || r.BackendType != "vxlan" || *r.BackendData != (leases.VTEP{VNI: 1, VtepMAC: "02:04:00:00:00:01"}) ||
		*r.BackendV6Data != (leases.VTEP{VNI: 1, VtepMAC: "02:06:00:00:00:01"}) || r.Reserved || r.TTLSeconds < 86300 || r.Error != "" || r.State != "used" || r.Alive != "yes" || r.Node != "host" {
		t.Errorf("lease %+v", r)
	}
	if r := rows[1]; r.Key != "10.5.34.0-24&fd10:5:0:34::-64" || !r.Reserved || r.TTLSeconds != 0 || r.BackendData != nil {
		t.Errorf("reservation %+v", r)
	}
	if r := rows[2]; r.Key != "10.5.50.0-24" || !strings.Contains(r.Error, "read JSON") {
		t.Errorf("bad entry %+v", r)
	}
	if !strings.Contains(out, "10.5.9.0-24&fd10") {
		t.Error("the ampersand of a key is escaped")
	}
}

func TestLeaseUsage(t *testing.T) {
	for _, tt := range []struct{ args, says string }{
		{"lease", "list, reserve, release or revoke"},
		{"lease frob", `"frob" is not a command of overlayd lease`},
		{"help nosuch", `"nosuch" is not a command of overlayd`},
		{"help lease frob", `"frob" is not a command of overlayd lease`},
		{"lease list x", "takes no argument"},
		{"--ip-masq true", "write --ip-masq=true"},
		{"--ip-masq false --etcd-prefix /x", "write --ip-masq=false"},
		{"--etcd-prefix /x true", `"true" is not a command of overlayd`},
		{"lease list -o yaml", "want table or json"},
		{"lease list --etcd-endpoints http://u:secret@h:1", "without user and password"},
		{"lease list --etcd-prefix /", "--etcd-prefix"},
		{"lease reserve", "want one argument"},
		{"lease reserve 10.5.34.0/24", "--public-ip"},
		{"lease reserve 10.5.34.7/24 --public-ip 192.0.2.1", "10.5.34.7/24"},
		{"lease reserve 10.5.34.0/24,10.5.35.0/24 --public-ip 192.0.2.1", "one subnet of each family"},
		{"lease reserve 10.5.34.0/24 --public-ip ::1", "--public-ip"},
		{"lease reserve 10.5.34.0/24 --public-ip 0.0.0.0", "--public-ip"},
		{"lease reserve 10.5.34.0/24 --public-ipv6 192.0.2.1", "--public-ipv6"},
		{"lease release", "want one argument"},
		{"lease revoke a b", "want one argument"},
	} {
		code, out := overlayd(t, strings.Fields(tt.args)...)
		if code != exitUsage || !strings.Contains(out, tt.says) || strings.Contains(out, "secret") {
			t.Errorf("%s: exit %d, %q, want %q", tt.args, code, out, tt.says)
		}
	}
	if code, out := overlayd(t, "lease", "list", "--etcd-endpoints", "unix:///nonexistent/etcd.sock"); code != exitFailure || !strings.Contains(out, "does not answer") {
		t.Errorf("without an etcd: exit %d, %q", code, out)
	}
	if code, out := overlayd(t, "help", "lease"); code != 0 || !strings.Contains(out, "revoke") {
		t.Errorf("help: exit %d, %q", code, out)
	}
	if code, out := overlayd(t, "lease", "--help"); code != 0 || !strings.Contains(out, "revoke") {
		t.Errorf("help: exit %d, %q", code, out)
	}
}
