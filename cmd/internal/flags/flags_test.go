package flags

import (
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

// parsed is what a command line and an environment make of the options.
func parsed(args []string, env map[string]string) (*Flags, error) {
	o := new(Flags)
	f := pflag.NewFlagSet("overlayd", pflag.ContinueOnError)
	o.Register(f)
	f.BoolVar(&o.Process.Version, "version", false, "")
	if err := f.Parse(Normalize(f, args)); err != nil {
		return o, err
	}
	return o, o.Complete(f, func(k string) (string, bool) { v, ok := env[k]; return v, ok })
}

// TestFlannelFlags: every flag of flanneld 0.28.9, on the command line with one dash and two, and as
// FLANNELD_ and OVERLAYD_ variable, has its effect on the options, or a warning says that it has none.
func TestFlannelFlags(t *testing.T) {
	dir := t.TempDir()
	pem, password := filepath.Join(dir, "x.pem"), filepath.Join(dir, "password")
	for file, text := range map[string]string{pem: "x", password: "hush\n"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	netConf := filepath.Join(dir, "net-conf.json")
	if err := os.WriteFile(netConf, []byte(`{"Network":"10.5.0.0/16"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	cases := []struct {
		flag, value string
		effect      func(*Flags) bool
		with        []string // further flags that it needs
		def         func(*Flags) bool
	}{
		{flag: "etcd-endpoints", value: "http://192.0.2.1:2379,http://192.0.2.2:2379",
			effect: func(o *Flags) bool {
				return slices.Equal(o.Etcd.Endpoints, []string{"http://192.0.2.1:2379", "http://192.0.2.2:2379"})
			},
			def: func(o *Flags) bool {
				return slices.Equal(o.Etcd.Endpoints, []string{"http://127.0.0.1:4001", "http://127.0.0.1:2379"})
			}},
		{flag: "etcd-prefix", value: "/other/network", effect: func(o *Flags) bool { return o.Etcd.PrefixOf("") == "/other/network" },
			def: func(o *Flags) bool { return o.Etcd.Prefix == "/coreos.com/network" }},
		{flag: "etcd-keyfile", value: pem, with: []string{"--etcd-endpoints=https://h:1", "--etcd-certfile", pem}, effect: func(o *Flags) bool { return o.Etcd.KeyFile == pem }},
		{flag: "etcd-certfile", value: pem, with: []string{"--etcd-endpoints=https://h:1", "--etcd-keyfile", pem}, effect: func(o *Flags) bool { return o.Etcd.CertFile == pem }},
		{flag: "etcd-cafile", value: pem, with: []string{"--etcd-endpoints=https://h:1"}, effect: func(o *Flags) bool { return o.Etcd.CAFile == pem }},
		{flag: "etcd-username", value: "u", effect: func(o *Flags) bool { return o.Etcd.Username == "u" }},
		{flag: "etcd-password", value: "hush", with: []string{"--etcd-username=u"}, effect: func(o *Flags) bool { return o.Etcd.Password == "hush" }},
		{flag: "etcd-password-file", value: password, with: []string{"--etcd-username=u"}, effect: func(o *Flags) bool { return o.Etcd.Password == "hush" }},
		{flag: "iface", value: "eth7", effect: func(o *Flags) bool { return slices.Equal(o.Config().Underlay.Iface, []string{"eth7"}) }},
		{flag: "iface-regex", value: "eth[0-9],x", effect: func(o *Flags) bool { return slices.Equal(o.Config().Underlay.IfaceRegex, []string{"eth[0-9],x"}) }},
		{flag: "iface-can-reach", value: "2001:db8::9", effect: func(o *Flags) bool { return o.Config().Underlay.CanReach == netip.MustParseAddr("2001:db8::9") }},
		{flag: "public-ip", value: "203.0.113.1", effect: func(o *Flags) bool { return o.Config().Underlay.PublicIP == netip.MustParseAddr("203.0.113.1") }},
		{flag: "public-ipv6", value: "2001:db8::1", effect: func(o *Flags) bool { return o.Config().Underlay.PublicIPv6 == netip.MustParseAddr("2001:db8::1") }},
		{flag: "subnet-file", value: filepath.Join(dir, "s.env"), effect: func(o *Flags) bool { return o.Config().SubnetFile == filepath.Join(dir, "s.env") },
			def: func(o *Flags) bool { return o.Config().SubnetFile == "/run/flannel/subnet.env" }},
		{flag: "subnet-lease-renew-margin", value: "90", effect: func(o *Flags) bool { return o.Config().RenewMargin == 90*time.Minute }, def: func(o *Flags) bool { return o.Config().RenewMargin == time.Hour }},
		{flag: "ip-masq", value: "true", effect: func(o *Flags) bool { return o.Config().Rules.Masquerade }, def: func(o *Flags) bool { return !o.Config().Rules.Masquerade }},
		{flag: "ip-masq-fully-random-disable", value: "true", effect: func(o *Flags) bool { return o.Config().Rules.KeepPorts }, def: func(o *Flags) bool { return !o.Config().Rules.KeepPorts }},
		{flag: "iptables-resync", value: "9", effect: func(o *Flags) bool { return o.Config().Rules.Resync == 9*time.Second }, def: func(o *Flags) bool { return o.Config().Rules.Resync == 5*time.Second }},
		{flag: "iptables-forward-rules", value: "false", effect: func(o *Flags) bool { return !o.Config().Rules.Forward }, def: func(o *Flags) bool { return o.Config().Rules.Forward }},
		{flag: "ip-blackhole-route", value: "true", effect: func(o *Flags) bool { return o.Config().Rules.Blackhole }, def: func(o *Flags) bool { return !o.Config().Rules.Blackhole }},
		{flag: "kube-subnet-mgr", value: "true", effect: func(o *Flags) bool { return o.Kube.Enabled }, def: func(o *Flags) bool { return !o.Kube.Enabled }},
		{flag: "kube-api-url", value: "https://192.0.2.1:6443", effect: func(o *Flags) bool { return o.Kube.APIURL == "https://192.0.2.1:6443" }},
		{flag: "kubeconfig-file", value: "/k", effect: func(o *Flags) bool { return o.Kube.Kubeconfig == "/k" }},
		{flag: "kube-annotation-prefix", value: "example.com/x", effect: func(o *Flags) bool { return o.Kube.AnnotationPrefix == "example.com/x" },
			def: func(o *Flags) bool { return o.Kube.AnnotationPrefix == "flannel.alpha.coreos.com" }},
		{flag: "net-config-path", value: netConf, effect: func(o *Flags) bool { return o.Network.ConfigPath == netConf && o.Config().FirstConfig != nil }},
		{flag: "set-node-network-unavailable", value: "false", effect: func(o *Flags) bool { return !o.Kube.SetAvailable },
			def: func(o *Flags) bool { return o.Kube.SetAvailable }},
		{flag: "healthz-ip", value: "127.0.0.1", effect: func(o *Flags) bool { return o.Process.HealthzIP == "127.0.0.1" }, def: func(o *Flags) bool { return o.Process.HealthzIP == "0.0.0.0" }},
		{flag: "healthz-port", value: "8081", effect: func(o *Flags) bool { return o.Process.HealthzPort == 8081 }, def: func(o *Flags) bool { return o.Process.HealthzPort == 0 }},
		{flag: "metrics-ip", value: "0.0.0.0", effect: func(o *Flags) bool { return o.Process.MetricsIP == "0.0.0.0" }, def: func(o *Flags) bool { return o.Process.MetricsIP == "127.0.0.1" }},
		{flag: "metrics-port", value: "9799", effect: func(o *Flags) bool { return o.Process.MetricsPort == 9799 }, def: func(o *Flags) bool { return o.Process.MetricsPort == 0 }},
		{flag: "metrics-peers", value: "on", effect: func(o *Flags) bool { return o.Process.MetricsPeers == "on" }, def: func(o *Flags) bool { return o.Process.MetricsPeers == "top" }},
		{flag: "v", value: "2", effect: func(o *Flags) bool { return o.Process.Level() == slog.LevelDebug }, def: func(o *Flags) bool { return o.Process.Level() == slog.LevelInfo }},
		{flag: "vmodule", value: "etcd=2", effect: warns("no level per file")},
		{flag: "log_backtrace_at", value: "main.go:7", effect: warns("no stack traces")},
	}
	for _, c := range cases {
		upper := strings.ToUpper(strings.ReplaceAll(c.flag, "-", "_"))
		for name, form := range map[string]struct {
			args []string
			env  map[string]string
		}{
			"two dashes": {args: []string{"--" + c.flag + "=" + c.value}},
			"one dash":   {args: []string{"-" + c.flag + "=" + c.value}},
			"FLANNELD_":  {env: map[string]string{"FLANNELD_" + upper: c.value}},
			"OVERLAYD_":  {env: map[string]string{"OVERLAYD_" + upper: c.value, "FLANNELD_" + upper: "\x00"}},
		} {
			o, err := parsed(append(c.with, form.args...), form.env)
			if err != nil || !c.effect(o) {
				t.Errorf("%s %s: no effect (%v)", c.flag, name, err)
			}
		}
		if o, err := parsed(nil, nil); err != nil || c.def != nil && !c.def(o) {
			t.Errorf("%s: not flannel's default (%v)", c.flag, err)
		}
	}
}

// warns returns a check that the flags are warned of with this text and a remedy.
func warns(text string) func(*Flags) bool {
	return func(o *Flags) bool {
		return slices.ContainsFunc(o.Warnings, func(w Warning) bool { return strings.Contains(w.Text, text) && w.Fix != "" })
	}
}

// TestRepeatedFlags: repeatable flags take one value each time, and a variable is one value.
func TestRepeatedFlags(t *testing.T) {
	o, err := parsed([]string{"--iface", "a", "-iface=b", "--iface-regex", "c", "--iface-regex", "d"}, nil)
	if err != nil || !slices.Equal(o.Config().Underlay.Iface, []string{"a", "b"}) || !slices.Equal(o.Config().Underlay.IfaceRegex, []string{"c", "d"}) {
		t.Errorf("got %q, %q, %v", o.Config().Underlay.Iface, o.Config().Underlay.IfaceRegex, err)
	}
	o, err = parsed(nil, map[string]string{"FLANNELD_IFACE": "a,b"})
	if err != nil || !slices.Equal(o.Config().Underlay.Iface, []string{"a,b"}) {
		t.Errorf("got %q, %v", o.Config().Underlay.Iface, err)
	}
}

// TestFlannelVariables: the variables that are no flag's.
func TestFlannelVariables(t *testing.T) {
	o, err := parsed([]string{"--kube-subnet-mgr"}, map[string]string{"NODE_NAME": "n", "POD_NAME": "p", "POD_NAMESPACE": "s", "EVENT_QUEUE_DEPTH": "9", "CONT_WHEN_CACHE_NOT_READY": "true"})
	if k := o.Kube; err != nil || k.NodeName != "n" || k.PodName != "p" || k.PodNamespace != "s" {
		t.Errorf("got %+v, %v", k, err)
	}
	if _, err := parsed([]string{"--kube-subnet-mgr"}, map[string]string{"EVENT_QUEUE_DEPTH": "x"}); err == nil || !strings.Contains(err.Error(), "EVENT_QUEUE_DEPTH=x format error") {
		t.Errorf("got %v", err)
	}
	// Kubernetes gives every pod variables of the services around it; these are no flags.
	if _, err := parsed(nil, map[string]string{"OVERLAYD_PORT": "tcp://10.0.0.1:80", "OVERLAYD_SERVICE_HOST": "10.0.0.1"}); err != nil {
		t.Error(err)
	}
}

// TestOwnFlags: flags that flannel has not, and combinations that make no sense.
func TestOwnFlags(t *testing.T) {
	dir := t.TempDir()
	empty := filepath.Join(dir, "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args string
		says string // empty: accepted
	}{
		{"--networks a,b", ""},
		{"--networks a/b", "a/b"},
		{"--networks subnets1", "keys of their own"},
		{"--networks config", "config"},
		{"--networks a --subnet-file /tmp/x", "--subnet-dir"},
		{"--networks a --network 10.5.0.0/16", "for which"},
		{"--networks a --subnet-dir " + empty, "is not a directory"},
		{"--watch-networks", ""},
		{"--kube-subnet-mgr --watch-networks", "--watch-networks cannot be used with --kube-subnet-mgr"},
		{"--kube-subnet-mgr --networks a", "--networks cannot be used with --kube-subnet-mgr"},
		{"--kube-subnet-mgr --etcd-embedded", "--etcd-embedded cannot be used with --kube-subnet-mgr"},
		{"--kube-subnet-mgr --network 10.5.0.0/16", "--network cannot be used with --kube-subnet-mgr"},
		{"--etcd-password x --etcd-password-file " + empty, "give one of them"},
		{"--etcd-password-file " + empty, "first line is empty"},
		{"--etcd-password-file " + filepath.Join(dir, "none"), "none"},
		{"--network 10.5.0.0/16,fd00:5::/48", ""},
		{"--network fd00:5::/48", ""},
		{"--network 10.5.0.0/16,10.6.0.0/16", "one of each"},
		{"--healthz-port 65536", "--healthz-port"},
		{"--public-ipv6 192.0.2.1", "--public-ipv6"},
		{"--public-ip ::ffff:192.0.2.1", "--public-ip"},
		{"--iface-can-reach 127.0.0.1", "--iface-can-reach"},
		{"--workload-address", ""},
		{"--ip-masq=maybe", "ip-masq"},
		{"--log_backtrace_at :0", ""},
	} {
		_, err := parsed(strings.Fields(c.args), nil)
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: got %v, want %q", c.args, err, c.says)
		}
	}
}

// TestNetworkFlag: what --network writes as the first config.
func TestNetworkFlag(t *testing.T) {
	for value, want := range map[string]string{
		"10.5.3.0/16":              `{"Backend":{"Type":"vxlan"},"Network":"10.5.0.0/16"}`,
		"fd00:5::/48":              `{"Backend":{"Type":"vxlan"},"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00:5::/48"}`,
		"fd00:5::/48, 10.5.0.0/16": `{"Backend":{"Type":"vxlan"},"EnableIPv6":true,"IPv6Network":"fd00:5::/48","Network":"10.5.0.0/16"}`,
	} {
		if got, err := networkJSON(value); err != nil || string(got) != want {
			t.Errorf("%s: got %s, %v", value, got, err)
		}
	}
}
