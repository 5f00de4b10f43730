package main

import (
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

func checkP99(t *testing.T, samples []time.Duration, limit time.Duration) {
	t.Helper()
	slices.Sort(samples)
	p99 := samples[len(samples)*99/100-1]
	t.Logf("median %s, p99 %s, max %s", samples[len(samples)/2], p99, samples[len(samples)-1])
	if p99 > limit {
		t.Errorf("p99 is %s, want at most %s", p99, limit)
	}
}

// overlayd runs the program as a user would and returns its exit code and output.
func overlayd(t *testing.T, args ...string) (int, string) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, args...)
	cmd.Env = append(os.Environ(), asOverlayd+"=1")
	out, _ := cmd.CombinedOutput()
	return cmd.ProcessState.ExitCode(), string(out)
}

func TestUsageErrors(t *testing.T) {
	dir := t.TempDir()
	bad := filepath.Join(dir, "net-conf.json")
	if err := os.WriteFile(bad, []byte(`{"Network":"10.5.0.0/30"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		says []string
	}{
		{[]string{"--no-such-flag"}, []string{"no-such-flag"}},
		{[]string{"-no-such-flag"}, []string{"no-such-flag"}},
		{[]string{"serve"}, []string{"serve"}},
		{[]string{"--dataplane", "dpdk"}, []string{"--dataplane", "dpdk"}},
		{[]string{"--df", "maybe"}, []string{"--df", "maybe"}},
		{[]string{"--df", "set"}, []string{"--df", "--dataplane=userspace"}},
		{[]string{"--debug-offloads", "-gro"}, []string{"--debug-offloads", "-gro", "udp-gro"}},
		{[]string{"--public-ip", "1.2.3"}, []string{"--public-ip", "1.2.3"}},
		{[]string{"--iface-regex", "("}, []string{"--iface-regex", "("}},
		{[]string{"--subnet-lease-renew-margin", "1440"}, []string{"--subnet-lease-renew-margin", "1440"}},
		{[]string{"--lease-ttl", "1s"}, []string{"--lease-ttl", "1s"}},
		{[]string{"--network", "10.5.0.0"}, []string{"--network", "10.5.0.0"}},
		{[]string{"--network", "10.5.0.0/30"}, []string{"--network", "10.5.0.0/30"}},
		{[]string{"--net-config-path", bad}, []string{"--net-config-path", bad, "10.5.0.0/30"}},
		{[]string{"--net-config-path", filepath.Join(dir, "none")}, []string{"--net-config-path", "none"}},
		{[]string{"--etcd-endpoints", "http://u:secret@h:1"}, []string{"--etcd-endpoints"}},
		{[]string{"--etcd-endpoints", `"http://u:secret@h:1`}, []string{"--etcd-endpoints"}},
		{[]string{"--kube-subnet-mgr", "--kube-api-url", "https://u:secret@h:1x"}, []string{"--kube-api-url", "--kubeconfig-file"}},
		{[]string{"--etcd-endpoints", "ftp://192.0.2.1"}, []string{"ftp"}},
		{[]string{"--etcd-password", "secret"}, []string{"user"}},
		{[]string{"--etcd-cafile", bad}, []string{bad}},
		{[]string{"--etcd-embedded", "--etcd-listen-client-url", "https://127.0.0.1:1"}, []string{"--etcd-listen-client-url", "https://127.0.0.1:1"}},
		{[]string{"--etcd-embedded", "--etcd-data-dir", ""}, []string{"--etcd-data-dir"}},
		{[]string{"--etcd-keyfile", bad}, []string{"--etcd-keyfile", "--etcd-certfile"}},
		{[]string{"--etcd-cafile", filepath.Join(dir, "none")}, []string{"--etcd-cafile", "none"}},
		{[]string{"--subnet-file", dir}, []string{"--subnet-file", dir}},
		{[]string{"--vmodule", "x=2"}, []string{"--vmodule", "-v 1"}},
		{[]string{"-kube-subnet-mgr=true"}, []string{"kubernetes", "NODE_NAME"}},
	} {
		code, out := overlayd(t, c.args...)
		if code != exitUsage {
			t.Errorf("%v: exit code %d, want %d:\n%s", c.args, code, exitUsage, out)
		}
		for _, part := range c.says {
			if !strings.Contains(out, part) {
				t.Errorf("%v does not name %q:\n%s", c.args, part, out)
			}
		}
		if strings.Contains(out, "secret") {
			t.Errorf("%v shows a secret:\n%s", c.args, out)
		}
	}
}

func TestHelpAndVersion(t *testing.T) {
	for _, args := range [][]string{{"--help"}, {"-help"}, {"-h"}, {"version"}, {"--version"}, {"-version"}, {"drain", "--help"}, {"demo", "-help"}} {
		if code, out := overlayd(t, args...); code != 0 || !strings.Contains(out, "overlayd") {
			t.Errorf("%v: exit code %d:\n%s", args, code, out)
		}
	}
}

// TestPrecedence: a flag wins over OVERLAYD_, that over FLANNELD_, that over the default.
func TestPrecedence(t *testing.T) {
	for _, c := range []struct {
		name string
		args []string
		env  map[string]string
		want string
	}{
		{"default", nil, nil, "/coreos.com/network"},
		{"flannel's", nil, map[string]string{"FLANNELD_ETCD_PREFIX": "/f"}, "/f"},
		{"ours wins", nil, map[string]string{"FLANNELD_ETCD_PREFIX": "/f", "OVERLAYD_ETCD_PREFIX": "/o"}, "/o"},
		{"empty is none", nil, map[string]string{"FLANNELD_ETCD_PREFIX": "/f", "OVERLAYD_ETCD_PREFIX": ""}, "/f"},
		{"flag wins", []string{"--etcd-prefix=/x"}, map[string]string{"OVERLAYD_ETCD_PREFIX": "/o"}, "/x"},
		{"one dash", []string{"-etcd-prefix", "/x"}, nil, "/x"},
		{"as flannel joins it", []string{"-etcd-prefix", "x//y/"}, nil, "x/y"},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := new(options)
			f := pflag.NewFlagSet("overlayd", pflag.ContinueOnError)
			o.register(f)
			if err := f.Parse(normalizeArgs(newRootCommand(), c.args)); err != nil {
				t.Fatal(err)
			}
			err := o.complete(f, func(k string) (string, bool) { v, ok := c.env[k]; return v, ok })
			if err != nil || o.etcdPrefix != c.want {
				t.Errorf("got %q, %v; want %q", o.etcdPrefix, err, c.want)
			}
		})
	}
}

func TestBadEnvironment(t *testing.T) {
	o := new(options)
	f := pflag.NewFlagSet("overlayd", pflag.ContinueOnError)
	o.register(f)
	err := o.complete(f, func(k string) (string, bool) { return "soon", k == "FLANNELD_SUBNET_LEASE_RENEW_MARGIN" })
	if err == nil || !strings.Contains(err.Error(), "FLANNELD_SUBNET_LEASE_RENEW_MARGIN") || !strings.Contains(err.Error(), "soon") {
		t.Errorf("got %v", err)
	}
	o, f = new(options), pflag.NewFlagSet("overlayd", pflag.ContinueOnError)
	o.register(f)
	err = o.complete(f, func(k string) (string, bool) { return `"http://u:secret@h:1`, k == "OVERLAYD_ETCD_ENDPOINTS" })
	if err == nil || !strings.Contains(err.Error(), "OVERLAYD_ETCD_ENDPOINTS") || strings.Contains(err.Error(), "secret") {
		t.Errorf("got %v", err)
	}
}

// TestNodeFile: two daemons on one subnet file are refused by name, and the node's
// ID is the same in the next run.
func TestNodeFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "deep", "subnet.env")
	if pid, held, err := running(file); pid != 0 || held || err != nil {
		t.Fatalf("nothing runs: got %d, %v, %v", pid, held, err)
	}
	n, err := claimNode(file)
	if err != nil {
		t.Fatal(err)
	}
	if len(n.id) != idLen {
		t.Errorf("node ID %q", n.id)
	}
	// A lock is the process's, so another process has to ask for it.
	code, out := overlayd(t, "--subnet-file", file)
	if code != exitFailure || !strings.Contains(out, file) || !strings.Contains(out, strconv.Itoa(os.Getpid())) {
		t.Errorf("second daemon: exit code %d:\n%s", code, out)
	}
	if code, out := overlayd(t, "cleanup", "--subnet-file", file); code != exitFailure || !strings.Contains(out, "stop it first") {
		t.Errorf("cleanup beside a daemon: exit code %d:\n%s", code, out)
	}
	left := traces{[]uint32{1, 12}, []netip.Prefix{netip.MustParsePrefix("10.5.0.0/16"), netip.MustParsePrefix("fd10:5::/48")}}
	for _, last := range []traces{left, {}, {vnis: []uint32{7}}} {
		if err := n.remember(last); err != nil {
			t.Fatal(err)
		}
		n.release()
		again, err := claimNode(file)
		if err != nil || again.id != n.id || !reflect.DeepEqual(again.last, last) {
			t.Errorf("next run: %+v, %v; want ID %s and %v", again, err, n.id, last)
		}
		n = again
	}
	again := n
	if err := again.remove(); err != nil {
		t.Error(err)
	}
	other, err := claimNode(file)
	if err != nil || other.id == n.id {
		t.Errorf("after removal: %+v, %v", other, err)
	}
	other.release()
}

// TestTracesSpoilt: of a file that somebody or a crash has cut, only whole lines count.
func TestTracesSpoilt(t *testing.T) {
	text := "\nvni 0\nvni 16777216\nvni x\nvni 3\nnetwork 10.5.0.0\nother 1\nnetwork 10.6.0.0/16\nvni 1"
	want := traces{[]uint32{3}, []netip.Prefix{netip.MustParsePrefix("10.6.0.0/16")}}
	if got := parseTraces(text); !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestNodeFileSpoilt: what is no ID is replaced by one.
func TestNodeFileSpoilt(t *testing.T) {
	file := filepath.Join(t.TempDir(), "subnet.env")
	for _, text := range []string{"", "x", strings.Repeat("z", idLen), strings.Repeat("0", idLen-1)} {
		if err := os.WriteFile(nodePath(file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		n, err := claimNode(file)
		if err != nil {
			t.Fatal(err)
		}
		if len(n.id) != idLen || strings.Contains(text, n.id) {
			t.Errorf("%q gives ID %q", text, n.id)
		}
		n.release()
	}
}
