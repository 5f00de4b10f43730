// Package overlayd_test holds the checks that concern the whole module.
package overlayd_test

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/overlayd/overlayd/"

// pkg is what `go list -json` says of a package, as far as it is needed here.
type pkg struct {
	ImportPath string
	Name       string
	Imports    []string
	Standard   bool
}

func list(t *testing.T, args ...string) (pkgs []pkg) {
	t.Helper()
	out, err := exec.Command("go", append([]string{"list", "-json=ImportPath,Name,Imports,Standard"}, args...)...).Output()
	if err != nil {
		t.Fatalf("go list %v: %v", args, err)
	}
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return pkgs
		} else if err != nil {
			t.Fatal(err)
		}
		pkgs = append(pkgs, p)
	}
}

// layers are the top-level folders from the bottom up; imports only point down.
var layers = []string{"encap", "dataplane", "control", "cmd"}

// siblings are the imports between packages of one folder that the house allows.
var siblings = map[string][]string{
	"dataplane/userspace": {"dataplane/capture", "dataplane/carrier", "dataplane/device", "dataplane/fib", "dataplane/inherit", "dataplane/tun"},
	"dataplane/inherit":   {"dataplane/carrier", "dataplane/rtnl", "dataplane/tun", "dataplane/udp"},
	"dataplane/carrier":   {"dataplane/capture", "dataplane/udp", "dataplane/uplink"},
	"dataplane/uplink":    {"dataplane/nft", "dataplane/rtmsg", "dataplane/tun", "dataplane/watch"},
	"dataplane/device":    {"dataplane/rtnl", "dataplane/tun", "dataplane/udp", "dataplane/watch"},
	"dataplane/kernel":    {"dataplane/rtmsg", "dataplane/rtnl", "dataplane/watch"},
	"dataplane/sysctl":    {"dataplane/firewall", "dataplane/rtnl", "dataplane/watch"},
	"dataplane/rtmsg":     {"dataplane/watch"},
	"dataplane/rtnl":      {"dataplane/rtmsg"},
	"dataplane/udp":       {"dataplane/nft", "dataplane/rtnl"},
	"dataplane/hostroute": {"dataplane/rtnl", "dataplane/watch"},
	"dataplane/masq":      {"dataplane/nft", "dataplane/watch", "dataplane/xtables"},
	"dataplane/guard":     {"dataplane/nft", "dataplane/watch"},
	"dataplane/firewall":  {"dataplane/nft", "dataplane/watch", "dataplane/xtables"},
	"dataplane/xtables":   {"dataplane/nft"},
	"dataplane/underlay":  {"dataplane/watch"},
	"control/etcd":        {"control/etcdkeys", "control/etcdnets", "control/etcdrpc"},
	"control/etcdkeys":    {"control/etcdrpc"},
	"control/etcdrpc":     {"control/conns"},
	"control/kube":        {"control/conns"},
	"control/etcdnets":    {"control/etcdrpc"},
	"cmd/internal/demo":   {"cmd/internal/fit", "cmd/internal/flags"},
	"cmd/internal/admin":  {"cmd/internal/claim", "cmd/internal/status"},
	"cmd/internal/node": {"cmd/internal/admin", "cmd/internal/claim", "cmd/internal/fit", "cmd/internal/leftovers", "cmd/internal/logs", "cmd/internal/nodefile",
		"cmd/internal/handover", "cmd/internal/overlay", "cmd/internal/parts", "cmd/internal/probe", "cmd/internal/sharedport", "cmd/internal/status", "cmd/internal/tcpport"},
	"cmd/internal/parts":      {"cmd/internal/fit", "cmd/internal/handover", "cmd/internal/overlay", "cmd/internal/sharedport", "cmd/internal/tcpport"},
	"cmd/internal/overlay":    {"cmd/internal/fit", "cmd/internal/sharedport"},
	"cmd/internal/probe":      {"cmd/internal/status"},
	"cmd/internal/sharedport": {"cmd/internal/handover"},
	"cmd/internal/handover":   {"cmd/internal/claim", "cmd/internal/nodefile"},
	"cmd/internal/tap":        {"cmd/internal/admin", "cmd/internal/status", "cmd/internal/stream"},
	"cmd/internal/metrics":    {"cmd/internal/status"},
	"cmd/internal/netconf":    {"cmd/internal/fit"},
	"cmd/internal/statuspage": {"cmd/internal/status", "cmd/internal/statustext"},
	"cmd/internal/statustext": {"cmd/internal/status"},
	"cmd/internal/leftovers":  {"cmd/internal/admin", "cmd/internal/claim", "cmd/internal/handover", "cmd/internal/nodefile"},
	"cmd/internal/nodefile":   {"cmd/internal/claim"},
	"cmd/internal/child":      {"cmd/internal/status"},
	"cmd/internal/cniinstall": {"cmd/internal/cni"},
	"cmd/internal/doctor":     {"cmd/internal/admin", "cmd/internal/fit", "cmd/internal/fixes", "cmd/internal/leftovers", "cmd/internal/nodefile", "cmd/internal/rights", "cmd/internal/status"},
	"cmd/internal/flags":      {"cmd/internal/fit", "cmd/internal/logs", "cmd/internal/node", "cmd/internal/parts", "cmd/internal/pki", "cmd/internal/status"},
	"cmd/internal/stores":     {"cmd/internal/flags", "cmd/internal/node"},
	"cmd/internal/leases":     {"cmd/internal/flags", "cmd/internal/nodefile"},
	"cmd/internal/etcdchild":  {"cmd/internal/child", "cmd/internal/flags", "cmd/internal/pki", "cmd/internal/rights", "cmd/internal/tcpport"},
	"cmd/internal/fixes": {"cmd/internal/admin", "cmd/internal/child", "cmd/internal/etcdchild", "cmd/internal/fit", "cmd/internal/flags", "cmd/internal/leftovers",
		"cmd/internal/node", "cmd/internal/nodefile", "cmd/internal/overlay", "cmd/internal/parts", "cmd/internal/pki", "cmd/internal/probe", "cmd/internal/tap", "cmd/internal/tcpport"},
}

// storeUsers are the packages below cmd/overlayd that know which stores there are.
var storeUsers = []string{"cmd/internal/stores", "cmd/internal/leases", "cmd/internal/etcdchild"}

// TestImportsPointDown checks the arrows of the house: layers import lower ones
// only, a package may import its parent's but never its child's, and siblings
// stay apart but for those listed.
func TestImportsPointDown(t *testing.T) {
	for _, p := range list(t, "./...") {
		from := strings.TrimPrefix(p.ImportPath, module)
		if slices.Contains([]string{"util", "utils", "common", "helpers", "types", "manager"}, p.Name) {
			t.Errorf("%s: a package is named after what it holds, not %q", from, p.Name)
		}
		for _, imported := range p.Imports {
			to, ours := strings.CutPrefix(imported, module)
			if !ours {
				if strings.HasPrefix(from, "encap") && strings.Contains(imported, ".") {
					t.Errorf("%s imports %s: encap uses the standard library only", from, imported)
				}
				continue
			}
			if reason := forbidden(from, to); reason != "" {
				t.Errorf("%s imports %s: %s", from, to, reason)
			}
		}
	}
}

func forbidden(from, to string) string {
	top := func(p string) string { first, _, _ := strings.Cut(p, "/"); return first }
	lower, upper := slices.Index(layers, top(to)), slices.Index(layers, top(from))
	switch {
	case top(from) == "bench":
		return "" // measures every layer
	case top(to) == "bench" && (from != "cmd/internal/demo" || to != "bench/testbed"):
		return "only the demo uses bench, and only its hosts"
	case lower > upper:
		return "imports point down"
	case strings.HasPrefix(from, "cmd/internal/") && strings.HasPrefix(to, "cmd/overlayd"):
		return "imports point down"
	case strings.HasPrefix(from, "cmd/internal/") && to == "control/controller":
		return "" // no store: what makes any store's leases true on this host, and says how that goes
	case strings.HasPrefix(from, "cmd/internal/") && strings.HasPrefix(to, "control/") && !slices.Contains(storeUsers, from):
		return "only cmd/overlayd and three packages know which stores there are"
	case to == "dataplane/pace" && lower <= upper:
		return "" // needs nothing, and everybody retries
	case to == "dataplane/hostfile" && lower <= upper:
		return "" // likewise: everybody reads files
	case from == "control/controller" && to == "dataplane/subnetfile":
		return "" // a file of this host that tells who has which subnet
	case lower < upper && top(from) != "cmd" && to != top(to):
		return "only cmd wires packages of another layer"
	case lower == upper && strings.HasPrefix(to, from+"/"):
		return "a parent never imports its child"
	case lower == upper && path.Dir(from) == path.Dir(to) && path.Dir(from) != "." && !slices.Contains(siblings[from], to):
		return "siblings stay apart"
	}
	return ""
}

func TestForbidden(t *testing.T) {
	for _, c := range []struct {
		from, to string
		ok       bool
	}{
		{"dataplane", "encap", true},
		{"encap", "dataplane", false},
		{"dataplane", "dataplane/fib", false},
		{"dataplane/userspace", "dataplane/fib", true},
		{"dataplane/fib", "dataplane/userspace", false},
		{"dataplane/userspace", "dataplane/carrier", true},
		{"dataplane/carrier", "dataplane/userspace", false},
		{"dataplane/carrier", "dataplane/udp", true},
		{"dataplane/userspace", "dataplane/udp", false},
		{"dataplane/kernel", "dataplane/fib", false},
		{"control", "dataplane", true},
		{"control", "dataplane/kernel", false},
		{"control/etcd", "dataplane/pace", true},
		{"dataplane/kernel", "dataplane/pace", true},
		{"encap", "dataplane/pace", false},
		{"control/etcd", "control", true},
		{"control/etcd", "control/etcdrpc", true},
		{"control/etcdkeys", "control/etcd", false},
		{"control/etcdrpc", "control/etcd", false},
		{"control", "control/etcd", false},
		{"cmd/overlayd", "dataplane/kernel", true},
		{"cmd/internal/demo", "bench/testbed", true},
		{"cmd/overlayd", "bench/testbed", false},
		{"cmd/overlayd", "control/etcd", true},
		{"cmd/overlayd", "cmd/internal/flags", true},
		{"cmd/internal/node", "dataplane/kernel", true},
		{"cmd/internal/node", "control", true},
		{"cmd/internal/node", "control/etcd", false},
		{"cmd/internal/fixes", "control/etcd", false},
		{"cmd/internal/stores", "control/etcd", true},
		{"cmd/internal/stores", "control/etcd/embedded", true},
		{"cmd/internal/node", "cmd/internal/stores", false},
		{"cmd/internal/node", "control/controller", true},
		{"control", "control/controller", false},
		{"control/etcd", "control/controller", false},
		{"control/controller", "dataplane/subnetfile", true},
		{"control/etcd", "dataplane/subnetfile", false},
		{"cmd/internal/node", "cmd/internal/status", true},
		{"cmd/internal/node", "cmd/internal/flags", false},
		{"cmd/internal/node", "cmd/internal/parts", true},
		{"cmd/internal/parts", "cmd/internal/node", false},
		{"cmd/internal/status", "cmd/internal/node", false},
		{"cmd/internal/flags", "cmd/overlayd", false},
		{"control", "cmd/internal/status", false},
		{"cmd/overlayd", "bench/compare", false},
		{"dataplane/kernel", "bench/testbed", false},
	} {
		if reason := forbidden(c.from, c.to); (reason == "") != c.ok {
			t.Errorf("%s imports %s: got %q, want allowed %v", c.from, c.to, reason, c.ok)
		}
	}
}

// TestNotInTheDaemon: gopacket allocates what a packet asks for (a
// 196-byte frame: 256 MiB), so it is a witness in tests and nothing else. The manual is written by a build of its own.
func TestNotInTheDaemon(t *testing.T) {
	for _, p := range list(t, "-deps", "./cmd/overlayd") {
		if strings.Contains(p.ImportPath, "gopacket") || strings.Contains(p.ImportPath, "cobra/doc") || strings.Contains(p.ImportPath, "internal/manual") {
			t.Errorf("the daemon links %s", p.ImportPath)
		}
	}
}

// TestSmallPlugin: the CNI plugin is started for every pod, and links neither a client of a store nor what the daemon has
// for its work.
func TestSmallPlugin(t *testing.T) {
	for _, p := range list(t, "-deps", "./cmd/overlayd-cni") {
		for _, never := range []string{"go.etcd.io/", "k8s.io/", "google.golang.org/grpc", "github.com/spf13/", "github.com/vishvananda/netlink", module + "control"} {
			if strings.HasPrefix(p.ImportPath, never) {
				t.Errorf("overlayd-cni links %s", p.ImportPath)
			}
		}
	}
}

// TestSmallTests: the daemon's own packages and their tests link neither an etcd server, nor a
// client of etcd or Kubernetes, nor a command line; only the flags link flags. So they build and
// run in seconds.
func TestSmallTests(t *testing.T) {
	for pkg, never := range map[string][]string{
		"./cmd/internal/status":    {"go.etcd.io/", "k8s.io/", "google.golang.org/grpc", "github.com/spf13/"},
		"./cmd/internal/probe":     {"go.etcd.io/", "k8s.io/", "google.golang.org/grpc", "github.com/spf13/"},
		"./cmd/internal/stream":    {"go.etcd.io/", "k8s.io/", "google.golang.org/grpc", "github.com/spf13/", "net/http"},
		"./cmd/internal/tap":       {"go.etcd.io/", "k8s.io/", "google.golang.org/grpc", "github.com/spf13/"},
		"./cmd/internal/admin":     {"go.etcd.io/", "k8s.io/", "google.golang.org/grpc", "github.com/spf13/"},
		"./cmd/internal/node":      {"go.etcd.io/", "k8s.io/", "google.golang.org/grpc", "github.com/spf13/"},
		"./cmd/internal/parts":     {"go.etcd.io/", "k8s.io/", "google.golang.org/grpc", "github.com/spf13/"},
		"./cmd/internal/overlay":   {"go.etcd.io/", "k8s.io/", "google.golang.org/grpc", "github.com/spf13/"},
		"./cmd/internal/child":     {"go.etcd.io/", "k8s.io/", "google.golang.org/grpc", "github.com/spf13/"},
		"./cmd/internal/fit":       {"go.etcd.io/", "k8s.io/", "google.golang.org/grpc", "github.com/spf13/"},
		"./cmd/internal/nodefile":  {"go.etcd.io/", "k8s.io/", "google.golang.org/grpc", "github.com/spf13/"},
		"./cmd/internal/leftovers": {"go.etcd.io/", "k8s.io/", "google.golang.org/grpc", "github.com/spf13/"},
		"./cmd/internal/cni":       {"go.etcd.io/", "k8s.io/", "google.golang.org/grpc", "github.com/spf13/"},
		"./cmd/internal/flags":     {"go.etcd.io/", "k8s.io/", "google.golang.org/grpc", "github.com/spf13/cobra"},
	} {
		for _, p := range list(t, "-deps", "-test", pkg) {
			if slices.ContainsFunc(never, func(prefix string) bool { return strings.HasPrefix(p.ImportPath, prefix) }) {
				t.Errorf("the tests of %s link %s", pkg, p.ImportPath)
			}
		}
	}
}
