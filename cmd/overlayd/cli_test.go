package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/overlayd/overlayd/cmd/internal/flags"
	"github.com/overlayd/overlayd/cmd/internal/netconf"
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
		{[]string{"--etcd-endpoints", "ftp://192.0.2.1"}, []string{"--etcd-endpoints", "unix:///"}},
		{[]string{"completion"}, []string{"want a subcommand: bash, zsh, fish or powershell", "Run 'overlayd completion --help'"}},
		{[]string{"completion", "foo"}, []string{`"foo" is not a command of overlayd completion`}},
		{[]string{"--healthz-ip", "999.1.1.1", "--healthz-port", "8081"}, []string{"--healthz-ip", "999.1.1.1"}},
		{[]string{"--v", "abc"}, []string{`--v: "abc": want a whole number`}},
		{[]string{"--etcd-endpoints", "https://h:1", "--etcd-cafile", bad}, []string{bad}},
		{[]string{"--etcd-embedded", "--etcd-listen-client-url", "ftp://127.0.0.1:1"}, []string{"--etcd-listen-client-url", "ftp://127.0.0.1:1"}},
		{[]string{"--etcd-embedded", "--etcd-listen-client-url", "http://192.0.2.1:2379"}, []string{"--etcd-listen-client-url", "http://192.0.2.1:2379", "\nfix: overlayd pki init", "--etcd-embedded-insecure"}},
		{[]string{"--etcd-embedded", "--etcd-listen-client-url", "https://127.0.0.1:1", "--pki-dir", dir}, []string{"--pki-dir", dir, "\nfix: overlayd pki init"}},
		{[]string{"pki", "join-file", "a", "--pki-dir", dir}, []string{dir, "\nfix: overlayd pki init"}},
		{[]string{"pki"}, []string{"want a subcommand: init, join-file or rotate", "Run 'overlayd pki --help'"}},
		{[]string{"--etcd-embedded", "--etcd-listen-client-url", "http://host.example:2379"}, []string{"--etcd-listen-client-url", "host.example", "<ip>"}},
		{[]string{"--etcd-embedded", "--etcd-data-dir", ""}, []string{"--etcd-data-dir"}},
		{[]string{"--etcd-endpoints", "https://h:1", "--etcd-cafile", filepath.Join(dir, "none")}, []string{"--etcd-cafile", "none"}},
		{[]string{"--subnet-file", dir}, []string{"--subnet-file", dir}},
		{[]string{"lease"}, []string{"want a subcommand: list, reserve, release or revoke", "Run 'overlayd lease --help'"}},
		{[]string{"lease", "list", "-o", "yaml"}, []string{"yaml", "Run 'overlayd lease list --help'"}},
		{[]string{"check"}, []string{"want a subcommand", "Run 'overlayd check --help'"}},
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

// TestErrorsInJSON: with --log-format=json the error that ends the program is a line of the log, whatever is wrong, and
// in text it is as ever.
func TestErrorsInJSON(t *testing.T) {
	for _, c := range []struct {
		args string
		code int
		says string
		fix  string
	}{
		{"--log-format=json --subnet-file=", 2, "--subnet-file", "Run 'overlayd --help' for the flags."},
		{"-log-format=json --no-such-flag", 2, "no-such-flag", "Run 'overlayd --help' for the flags."},
		{"--no-such-flag --x y -v 1 --log-format json", 2, "no-such-flag", "Run 'overlayd --help' for the flags."},
		{"--log-format json --iface none", 1, "none", "correct --iface"},
		{"drain --to=x --log-format=json", 2, "--to", "Run 'overlayd drain --help' for the flags."},
	} {
		code, out := overlayd(t, strings.Fields(c.args)...)
		if code != c.code {
			t.Errorf("%s: exit code %d, want %d:\n%s", c.args, code, c.code, out)
		}
		var last struct{ Level, Msg, Err, Fix string }
		for line := range strings.Lines(out) {
			if err := json.Unmarshal([]byte(line), &last); err != nil {
				t.Errorf("%s: %v: %s", c.args, err, line)
			}
		}
		if last.Level != "ERROR" || !strings.Contains(last.Err, c.says) || last.Fix != c.fix {
			t.Errorf("%s: got %+v, want %q and %q", c.args, last, c.says, c.fix)
		}
	}
	for _, args := range []string{"--log-format=jsn", "lease list x", "--no-such-flag"} {
		if _, out := overlayd(t, strings.Fields(args)...); !strings.HasPrefix(out, "overlayd: ") {
			t.Errorf("%s: %s", args, out)
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

// TestMisspelt: a variable of the environment that is nearly that of a flag is warned of, and what may be of others is not.
func TestMisspelt(t *testing.T) {
	t.Parallel()
	f := newRootCommand().Flags()
	got := flags.Misspelt(f, []string{"OVERLAYD_ETCD_ENDPOINT=x", "OVERLAYD_DATAPLAIN=y", "OVERLAYD_ETCD_ENDPOINTS=x", "OVERLAYD_VERSION=1", "OVERLAYD_SERVICE_HOST=h",
		"OVERLAYD_PORT_8472_UDP_PROTO=udp", "FLANNELD_IPMASQ=1", "PATH=/bin"}, netconf.Nearest)
	want := []flags.Warning{{Text: "environment variable OVERLAYD_ETCD_ENDPOINT has no effect: there is no such flag", Fix: "OVERLAYD_ETCD_ENDPOINTS"},
		{Text: "environment variable OVERLAYD_DATAPLAIN has no effect: there is no such flag", Fix: "OVERLAYD_DATAPLANE"}}
	if !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}
