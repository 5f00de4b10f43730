package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/overlayd/overlayd/cmd/internal/flags"
)

// daemonFlags is what the daemon makes of a command line and an environment.
func daemonFlags(args, env []string) (*flags.Flags, error) {
	root := newRootCommand()
	args = flags.Normalize(root.Flags(), args)
	if err := root.ParseFlags(args); err != nil {
		return nil, flags.Readable(err)
	}
	if err := root.ValidateArgs(root.Flags().Args()); err != nil {
		return nil, err
	}
	o, f := new(flags.Flags), pflag.NewFlagSet("overlayd", pflag.ContinueOnError)
	o.Register(f)
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	return o, o.Complete(f, func(key string) (string, bool) {
		for _, v := range env {
			if name, value, _ := strings.Cut(v, "="); name == key {
				return value, true
			}
		}
		return "", false
	})
}

// flannelVariant is one use of flanneld's flags: words with a = and upper case are variables.
type flannelVariant struct {
	line    string
	refused string                  // the flag or variable of docs/from-flannel.md if it is refused
	warns   string                  // in the log
	effect  func(*flags.Flags) bool // nil: that it is accepted is all
}

func flannelVariants(dir string) []flannelVariant {
	endpoints := func(want ...string) func(*flags.Flags) bool {
		return func(o *flags.Flags) bool { return slices.Equal(o.Etcd.Endpoints, want) }
	}
	resync := func(want time.Duration) func(*flags.Flags) bool {
		return func(o *flags.Flags) bool { return o.Config().Rules.Resync == want }
	}
	pem := filepath.Join(dir, "x.pem")
	certs := "--etcd-cafile=" + pem + " --etcd-certfile=" + pem + " --etcd-keyfile=" + pem
	plain := "--etcd-endpoints=http://10.0.0.2:2379 "
	return []flannelVariant{
		// Documentation/configuration.md, running.md, kubernetes.md, troubleshooting.md, the chart and the manifests
		{line: ""},
		{line: "--etcd-endpoints=http://127.0.0.1:4001", effect: endpoints("http://127.0.0.1:4001")},
		{line: "FLANNELD_ETCD_ENDPOINTS=http://10.0.0.2:2379", effect: endpoints("http://10.0.0.2:2379")},
		{line: "--public-ip= --public-ipv6= --iface= --iface-regex= --iface-can-reach= --etcd-keyfile= --etcd-certfile= --etcd-cafile=",
			effect: func(o *flags.Flags) bool {
				u := o.Config().Underlay
				return len(u.Iface) == 0 && len(u.IfaceRegex) == 0 && !u.CanReach.IsValid() && !u.PublicIP.IsValid()
			}},
		{line: "--ip-masq --kube-subnet-mgr", effect: func(o *flags.Flags) bool { return o.Kube.Enabled && o.Config().Rules.Masquerade }},
		{line: "--ip-masq --kube-subnet-mgr --healthz-port=8081 --iface=eth1 --v=2"},
		{line: "--ip-masq=true -v=10"},
		{line: "--ip-masq=false -v=0", effect: func(o *flags.Flags) bool { return !o.Config().Rules.Masquerade }},
		{line: "--iface-can-reach=192.168.1.1", effect: func(o *flags.Flags) bool { return o.Config().Underlay.CanReach.IsValid() }},
		{line: "--iptables-forward-rules=false --iptables-resync=60 --subnet-lease-renew-margin=120", effect: resync(time.Minute)},
		{line: "--healthz-ip=0.0.0.0 --healthz-port=0 --set-node-network-unavailable=false --ip-blackhole-route"},
		{line: "--kube-subnet-mgr --net-config-path=/etc/kube-flannel/net-conf.json --kube-annotation-prefix=flannel.alpha.coreos.com/x"},
		{line: "--kube-subnet-mgr EVENT_QUEUE_DEPTH=9000 CONT_WHEN_CACHE_NOT_READY=true"},
		// functional/, the tests with docker
		{line: "--etcd-endpoints=https://172.17.0.1:2379 " + certs + " -etcd-prefix=/vxlan/network -subnet-file /vxlan.env",
			effect: func(o *flags.Flags) bool { return o.Etcd.CertFile == pem && o.Config().SubnetFile == "/vxlan.env" }},
		{line: "--kube-subnet-mgr --ip-masq --kubeconfig-file /var/lib/kubernetes/admin.kubeconfig --kube-api-url http://172.17.0.1:8080"},
		// what flanneld takes besides
		{line: "--etcd-endpoints=10.99.0.1:2379,h:2379", warns: "taken for http", effect: endpoints("http://10.99.0.1:2379", "http://h:2379")},
		{line: "--etcd-endpoints=10.99.0.1:2379 " + certs, warns: "taken for https", effect: endpoints("https://10.99.0.1:2379")},
		{line: "--etcd-endpoints=http://a:2379,", effect: endpoints("http://a:2379")},
		{line: "--etcd-endpoints=http://a:1 --etcd-endpoints=http://b:2", effect: endpoints("http://b:2")},
		{line: plain + "--etcd-cafile=" + dir + "/missing", warns: "not used: the endpoints of etcd are http"},
		{line: plain + certs, warns: "not used: the endpoints of etcd are http"},
		{line: "--etcd-endpoints=https://a:1 --etcd-keyfile=" + pem, warns: "a certificate and its key"},
		{line: "--etcd-password=x", warns: "given without a user"},
		{line: "--healthz-ip="}, {line: "--healthz-ip=localhost"}, {line: "--healthz-ip=::"}, {line: "--healthz-port=-1", warns: "is taken for 0"}, {line: "--v=-3", warns: "is taken for 0"},
		{line: "--iptables-resync=0", warns: "is taken for 1", effect: resync(time.Second)},
		{line: "--iptables-resync=-5", warns: "is taken for 1", effect: resync(time.Second)},
		{line: "--iptables-resync=100000", warns: "is taken for 86400", effect: resync(24 * time.Hour)},
		{line: "-vmodule=etcd=2", warns: "has no effect"},
		{line: "-log_backtrace_at=main.go:7", warns: "has no effect"},
		{line: "-log_backtrace_at=:0"},
		{line: "FLANNELD_IP_MASQ=yes", warns: "taken for false", effect: func(o *flags.Flags) bool { return !o.Config().Rules.Masquerade }},
		{line: "FLANNELD_IPTABLES_FORWARD_RULES=on", warns: "taken for false", effect: func(o *flags.Flags) bool { return !o.Config().Rules.Forward }},
		{line: "FLANNELD_IP_MASQ=1", effect: func(o *flags.Flags) bool { return o.Config().Rules.Masquerade }},
		// what flanneld takes and overlayd does not
		{line: "--etcd-endpoints=http://u:secret@10.99.0.1:2379", refused: "--etcd-endpoints=http://user:password@host"},
		{line: "--etcd-endpoints=u:secret@10.99.0.1:2379", refused: "--etcd-endpoints=http://user:password@host"},
		{line: "--kube-subnet-mgr --kube-api-url=https://u:secret@h", refused: "--etcd-endpoints=http://user:password@host"},
		{line: "--etcd-endpoints=http://a:2379,https://b:2379", refused: "--etcd-endpoints=http://a,https://b"},
		{line: "--etcd-prefix=/", refused: "--etcd-prefix=/"},
		{line: "--etcd-prefix=", refused: "--etcd-prefix=/"},
		{line: "--net-config-path=" + dir + "/missing", refused: "--net-config-path=missing"},
		{line: "FLANNELD_HEALTHZ_PORT=http", refused: "FLANNELD_HEALTHZ_PORT=http"},
		{line: "--ip-masq true --iface eth1", refused: "--ip-masq true"},
	}
}

// TestFlannelsFlagVariants: what flanneld's own documents, tests and users write has the same effect, or is
// refused in one sentence; docs/from-flannel.md lists those, and no others.
func TestFlannelsFlagVariants(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "x.pem"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	refused := map[string]bool{}
	for _, v := range flannelVariants(dir) {
		var args, env []string
		for _, word := range strings.Fields(v.line) {
			if strings.HasPrefix(word, "-") || !strings.Contains(word, "=") {
				args = append(args, word)
			} else {
				env = append(env, word)
			}
		}
		o, err := daemonFlags(args, env)
		if v.refused != "" {
			refused[v.refused] = true
			if err == nil || strings.Contains(err.Error(), "\n") || strings.Contains(err.Error(), "secret") {
				t.Errorf("%s: want one sentence, got %v", v.line, err)
			}
			continue
		}
		if err != nil || v.effect != nil && !v.effect(o) {
			t.Errorf("%s: no effect, error %v", v.line, err)
			continue
		}
		if text := fmt.Sprint(o.Warnings); v.warns == "" && len(o.Warnings) > 0 || !strings.Contains(text, v.warns) {
			t.Errorf("%s: warnings %s, want %q", v.line, text, v.warns)
		}
	}
	if documented := refusedInDocs(t); len(documented) > 6 || len(documented) != len(refused) {
		t.Errorf("documented are %q, refused are %v", documented, refused)
	} else {
		for _, d := range documented {
			if !refused[d] {
				t.Errorf("%s is documented as refused and is not", d)
			}
		}
	}
}

// refusedInDocs returns the first column of the table of refused flags.
func refusedInDocs(t *testing.T) (list []string) {
	b, err := os.ReadFile("../../docs/from-flannel.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(b), "## Refused flags\n")
	section, _, _ = strings.Cut(section, "\n## ")
	for _, m := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\|").FindAllStringSubmatch(section, -1) {
		list = append(list, m[1])
	}
	return list
}
