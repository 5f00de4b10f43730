package flags

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/cmd/internal/fit"
	"github.com/overlayd/overlayd/cmd/internal/node"
	"github.com/overlayd/overlayd/cmd/internal/parts"
	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/carrier"
	"github.com/overlayd/overlayd/dataplane/guard"
)

func registered() (*Flags, *pflag.FlagSet) {
	o, f := new(Flags), pflag.NewFlagSet("overlayd", pflag.ContinueOnError)
	o.Register(f)
	return o, f
}

// TestHelp: each flag says in one sentence what it does, as the rest of them do.
func TestHelp(t *testing.T) {
	_, f := registered()
	seen := map[string]string{}
	f.VisitAll(func(flag *pflag.Flag) {
		switch u := flag.Usage; {
		case u == "":
			t.Errorf("--%s has no help", flag.Name)
		case unicode.IsSpace(rune(u[0])), strings.HasSuffix(u, "."), strings.Contains(u, ". "), strings.Contains(u, "\n"), strings.Contains(u, "  "):
			t.Errorf("--%s: %q is not one sentence without a full stop", flag.Name, u)
		case strings.ContainsAny(u, "`"):
			t.Errorf("--%s: %q: pflag would take the quoted word for a name of the value", flag.Name, u)
		case seen[u] != "" && !flag.Hidden:
			t.Errorf("--%s and --%s have the same help", flag.Name, seen[u])
		default:
			seen[u] = flag.Name
		}
	})
	for name := range strings.SplitSeq("vmodule log_backtrace_at debug-offloads debug-events", " ") {
		if !f.Lookup(name).Hidden {
			t.Errorf("--%s is shown", name)
		}
	}
}

// TestHelpNamesFlagsThatExist: a flag that the help of another one mentions is there.
func TestHelpNamesFlagsThatExist(t *testing.T) {
	_, f := registered()
	mentioned := regexp.MustCompile(`--([a-z][a-z0-9-]*)`)
	found := 0
	f.VisitAll(func(flag *pflag.Flag) {
		for _, m := range mentioned.FindAllStringSubmatch(flag.Usage, -1) {
			found++
			if f.Lookup(m[1]) == nil {
				t.Errorf("--%s mentions --%s, which does not exist", flag.Name, m[1])
			}
		}
	})
	if found < 5 {
		t.Errorf("only %d mentions were found", found)
	}
}

// TestGroupsHaveEverything: every flag is in one group, in the order in which it was registered.
func TestGroupsHaveEverything(t *testing.T) {
	_, f := registered()
	f.Bool("lonely", false, "")
	groups := Groups(f)
	var titles []string
	count := map[string]int{}
	for _, g := range groups {
		titles = append(titles, g.Title)
		g.Flags.VisitAll(func(flag *pflag.Flag) { count[flag.Name]++ })
	}
	want := []string{"Dataplane", "Network and subnet", "etcd", "Kubernetes", "Underlay", "Traffic rules and routes", "Process", "Flags"}
	if !slices.Equal(titles, want) {
		t.Errorf("groups %q, want %q", titles, want)
	}
	f.VisitAll(func(flag *pflag.Flag) {
		if count[flag.Name] != 1 {
			t.Errorf("--%s is in %d groups", flag.Name, count[flag.Name])
		}
	})
	if rest := groups[len(groups)-1].Flags; rest.Lookup("lonely") == nil || rest.Lookup("iface") != nil {
		t.Error("the last group does not have exactly the flags without a group")
	}
	var order []string
	groups[4].Flags.VisitAll(func(flag *pflag.Flag) { order = append(order, flag.Name) })
	if !slices.Equal(order, []string{"iface", "iface-regex", "iface-can-reach", "public-ip", "public-ipv6"}) {
		t.Errorf("order %q", order)
	}
}

// TestDefaultConfig: a daemon without flags is told the documented defaults and nothing else.
func TestDefaultConfig(t *testing.T) {
	o, err := parsed(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	got := o.Config()
	if got.Log == nil {
		t.Error("no log")
	}
	want := node.Config{
		Log: got.Log, LogLevel: got.LogLevel, SubnetFile: "/run/flannel/subnet.env", SubnetDir: "/run/flannel/networks",
		Options: parts.Options{Mode: fit.Auto, Offloads: got.Offloads, WantTunnel: true, SourceCheck: dataplane.SourceStrict, EgressMark: guard.DefaultMark,
			MinPathMTU: carrier.DefaultMinPathMTU, Rules: parts.RuleConfig{Forward: true, Resync: 5 * time.Second}},
		ConfigHold: 30 * time.Second, RenewMargin: time.Hour, ProbeInterval: 10 * time.Second,
		Admin: node.AdminConfig{Group: -1},
	}
	if !sameButFuncs(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	wantEtcd := Etcd{
		Endpoints: []string{"http://127.0.0.1:4001", "http://127.0.0.1:2379"}, Prefix: "/coreos.com/network",
		endpoints: "http://127.0.0.1:4001,http://127.0.0.1:2379",
		DataDir:   "/var/lib/overlayd/etcd", PKIDir: "/etc/overlayd/pki", ListenURL: "http://127.0.0.1:2379", LeaseTTL: 24 * time.Hour, renewMarginMin: 60,
	}
	if !reflect.DeepEqual(o.Etcd, wantEtcd) {
		t.Errorf("etcd: got %+v, want %+v", o.Etcd, wantEtcd)
	}
	if want := (kubeFlags{AnnotationPrefix: "flannel.alpha.coreos.com", SetAvailable: true}); o.Kube != want {
		t.Errorf("kube: got %+v, want %+v", o.Kube, want)
	}
	if want := (Process{HealthzIP: "0.0.0.0", MetricsIP: "127.0.0.1", MetricsPeers: "top", LogFormat: "text", AdminGroup: -1, probeInterval: 10 * time.Second}); o.Process != want {
		t.Errorf("process: got %+v, want %+v", o.Process, want)
	}
}

// sameButFuncs compares configs whose functions are the caller's.
func sameButFuncs(a, b node.Config) bool {
	if a.OpenStore != nil || a.Certificates != nil || a.OpenNetworks != nil || a.StartEtcd != nil || a.Endpoints != nil || a.Notify != nil || a.Fix != nil {
		return false
	}
	return reflect.DeepEqual(a, b)
}

// everyFlag has a value for each flag that is not its default, and what else the flag needs. Of
// stores is what cmd/overlayd reads from the groups itself.
func everyFlag(t *testing.T) map[string]struct {
	value, with string
} {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	pem, password, config := file("pem", "x"), file("password", "hush\n"), file("net-conf.json", `{"Network":"10.5.0.0/16"}`)
	return map[string]struct{ value, with string }{
		"dataplane":                    {"kernel", ""},
		"df":                           {"set", "--dataplane=userspace"},
		"min-path-mtu":                 {"1300", ""},
		"source-check":                 {"inner", "--peer-cidr=10.0.0.0/8"},
		"peer-cidr":                    {"10.0.0.0/8", "--source-check=inner"},
		"plain-source":                 {"allow", ""},
		"egress-mark":                  {"0x8000", ""},
		"offload":                      {"tunnel", ""},
		"debug-offloads":               {"none", ""},
		"debug-events":                 {"off", ""},
		"network":                      {"10.7.0.0/16", ""},
		"net-config-path":              {config, ""},
		"subnet-file":                  {filepath.Join(dir, "s.env"), ""},
		"workload-address":             {"true", ""},
		"config-hold":                  {"1m", ""},
		"networks":                     {"red", ""},
		"watch-networks":               {"true", ""},
		"subnet-dir":                   {dir, ""},
		"etcd-endpoints":               {"http://192.0.2.1:2379", ""},
		"etcd-prefix":                  {"/other", ""},
		"etcd-cafile":                  {pem, "--etcd-endpoints=https://192.0.2.1:2379"},
		"etcd-certfile":                {pem, "--etcd-endpoints=https://192.0.2.1:2379 --etcd-keyfile=" + password},
		"etcd-keyfile":                 {pem, "--etcd-endpoints=https://192.0.2.1:2379 --etcd-certfile=" + password},
		"join-file":                    {joinFile(t, dir), "--etcd-endpoints=https://192.0.2.1:2379"},
		"etcd-username":                {"u", ""},
		"etcd-password-file":           {password, "--etcd-username=u"},
		"etcd-password":                {"hush", "--etcd-username=u"},
		"etcd-embedded":                {"true", ""},
		"etcd-embedded-rebuild":        {"true", "--etcd-embedded"},
		"etcd-embedded-insecure":       {"true", "--etcd-embedded"},
		"pki-dir":                      {dir, ""},
		"etcd-data-dir":                {dir, ""},
		"etcd-listen-client-url":       {"http://192.0.2.1:2379", ""},
		"lease-ttl":                    {"1h", ""},
		"subnet-lease-renew-margin":    {"90", ""},
		"kube-subnet-mgr":              {"true", ""},
		"kube-api-url":                 {"https://192.0.2.1:6443", ""},
		"kubeconfig-file":              {config, ""},
		"kube-annotation-prefix":       {"example.com/x", ""},
		"set-node-network-unavailable": {"false", ""},
		"iface":                        {"eth7", ""},
		"iface-regex":                  {"eth[0-9]", ""},
		"iface-can-reach":              {"192.0.2.9", ""},
		"public-ip":                    {"203.0.113.1", ""},
		"public-ipv6":                  {"2001:db8::1", ""},
		"ip-masq":                      {"true", ""},
		"ip-masq-fully-random-disable": {"true", ""},
		"iptables-forward-rules":       {"false", ""},
		"iptables-resync":              {"9", ""},
		"ip-blackhole-route":           {"true", ""},
		"remove-rules-on-exit":         {"true", ""},
		"healthz-ip":                   {"127.0.0.1", ""},
		"healthz-port":                 {"8081", ""},
		"metrics-ip":                   {"0.0.0.0", ""},
		"metrics-port":                 {"9799", ""},
		"metrics-peers":                {"on", ""},
		"replace":                      {"true", ""},
		"stand-by":                     {"true", ""},
		"env-file":                     {file("env", "OVERLAYD_PUBLIC_IP=203.0.113.9\n"), ""},
		"probe-interval":               {"1m", ""},
		"admin-group":                  {"1000", ""},
		"log-format":                   {"json", ""},
		"v":                            {"1", ""},
		"vmodule":                      {"x=1", ""},
		"log_backtrace_at":             {"x:1", ""},
	}
}

// TestEveryFlagCounts: no flag is parsed and then forgotten. Each changes what a daemon is told, or
// an exported field that cmd/overlayd opens the stores and the health endpoint with.
func TestEveryFlagCounts(t *testing.T) {
	values := everyFlag(t)
	_, f := registered()
	f.VisitAll(func(flag *pflag.Flag) {
		if _, ok := values[flag.Name]; !ok {
			t.Errorf("--%s: this test has no value for it", flag.Name)
		}
	})
	for name, c := range values {
		if name == "vmodule" || name == "log_backtrace_at" {
			continue // without effect: TestFlannelFlags
		}
		with := strings.Fields(c.with)
		before, err := parsed(with, nil)
		if err != nil && name != "source-check" && name != "peer-cidr" {
			t.Fatalf("%s: %v", c.with, err)
		}
		after, err := parsed(append(with, "--"+name+"="+c.value), nil)
		if err != nil {
			t.Errorf("--%s=%s: %v", name, c.value, err)
			continue
		}
		if effect(before) == effect(after) {
			t.Errorf("--%s=%s changes nothing that anybody reads", name, c.value)
		}
	}
}

// effect prints what others can read of flags.
func effect(o *Flags) string {
	c := o.Config()
	level := c.Log.Enabled(context.Background(), -4)
	handler := fmt.Sprintf("%T", c.Log.Handler())
	c.Log = nil
	var exported []string
	for group := range reflect.ValueOf(o).Elem().NumField() {
		g := reflect.ValueOf(o).Elem().Field(group)
		if g.Kind() != reflect.Struct { // Warnings
			continue
		}
		for i := range g.NumField() {
			if f := g.Type().Field(i); f.IsExported() {
				exported = append(exported, fmt.Sprintf("%s.%s=%v", g.Type().Name(), f.Name, g.Field(i)))
			}
		}
	}
	return fmt.Sprintf("%+v %v %s %q %v", c, level, handler, exported, o.Network.Several())
}

// TestEveryFieldIsSet: no flag is missing either: each field of what a daemon is told comes from a
// flag, but for those that cmd/overlayd fills in.
func TestEveryFieldIsSet(t *testing.T) {
	callers := []string{"Hostname", "Version", "OpenStore", "StoreLog", "StoreHosts", "Certificates", "OpenNetworks", "StartEtcd", "Endpoints", "Keeper", "Left", "Notify", "Watchdog", "Fix", "Captures", "Settled", "Admin.Routes", "Underlay.IPv4", "Underlay.IPv6"}
	changed := map[string]bool{}
	note := func(o *Flags) {
		var walk func(path string, v reflect.Value)
		walk = func(path string, v reflect.Value) {
			if v.Kind() == reflect.Struct && v.Type().PkgPath() != "net/netip" && v.NumField() > 0 && v.Type().Field(0).IsExported() {
				for i := range v.NumField() {
					walk(strings.TrimPrefix(path+"."+v.Type().Field(i).Name, "."), v.Field(i))
				}
				return
			}
			changed[path] = changed[path] || !v.IsZero()
		}
		walk("", reflect.ValueOf(o.Config()))
	}
	for name, c := range everyFlag(t) {
		if o, err := parsed(append(strings.Fields(c.with), "--"+name+"="+c.value), nil); err == nil {
			note(o)
		}
	}
	if len(changed) < 20 {
		t.Fatalf("only %d fields were seen", len(changed))
	}
	for path, is := range changed {
		if is == slices.Contains(callers, path) {
			t.Errorf("Config.%s: set by a flag: %v", path, is)
		}
	}
}

// TestPrecedenceOfEveryFlag: command line over OVERLAYD_ over FLANNELD_, for each flag.
func TestPrecedenceOfEveryFlag(t *testing.T) {
	const ours, flannels = "OVERLAYD_", "FLANNELD_"
	for name, c := range everyFlag(t) {
		upper := strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
		for _, step := range []struct {
			args []string
			env  map[string]string
			want bool // the value is taken
		}{
			{nil, map[string]string{flannels + upper: c.value}, true},
			{nil, map[string]string{ours + upper: c.value, flannels + upper: "\x00"}, true},
			{[]string{"--" + name + "=" + c.value}, map[string]string{ours + upper: "\x00", flannels + upper: "\x00"}, true},
			{nil, map[string]string{upper: c.value, "overlayd_" + strings.ToLower(upper): c.value}, false},
			{nil, map[string]string{ours + upper: "", flannels + upper: ""}, false},
		} {
			_, f := registered()
			def := f.Lookup(name).Value.String()
			if err := f.Parse(step.args); err != nil {
				t.Fatal(err)
			}
			env := func(k string) (string, bool) { v, ok := step.env[k]; return v, ok }
			if given := Given(f, env, name); given != step.want {
				t.Errorf("--%s with %q %v: given %v", name, step.args, step.env, given)
			}
			if err := ApplyEnv(f, env); err != nil {
				t.Errorf("--%s with %q %v: %v", name, step.args, step.env, err)
			}
			if got := f.Lookup(name).Value.String(); (got != def) != step.want {
				t.Errorf("--%s with %q %v is %s, by default %s", name, step.args, step.env, got, def)
			}
		}
	}
}

// TestAllBadVariables: every variable that cannot be read is named, not only the first.
func TestAllBadVariables(t *testing.T) {
	o, f := registered()
	bad := map[string]string{"OVERLAYD_HEALTHZ_PORT": "http", "OVERLAYD_IP_MASQ": "perhaps", "FLANNELD_SUBNET_LEASE_RENEW_MARGIN": "soon", "OVERLAYD_LEASE_TTL": "1 day"}
	err := o.Complete(f, func(k string) (string, bool) { v, ok := bad[k]; return v, ok })
	for name, value := range bad {
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("environment variable %s: %q: want ", name, value)) || strings.Contains(err.Error(), "strconv") {
			t.Errorf("%s=%s is not in: %v", name, value, err)
		}
	}
	o, f = registered()
	if err := o.Complete(f, func(k string) (string, bool) { return "v0.28.9", k == "OVERLAYD_VERSION" || k == "OVERLAYD_HELP" }); err != nil {
		t.Errorf("the tag of an image is taken for a flag: %v", err)
	}
}

// TestRefusals: a refusal names the flag, quotes the value and says what is wanted.
func TestRefusals(t *testing.T) {
	dir := t.TempDir()
	file, nobodys := filepath.Join(dir, "file"), filepath.Join(dir, "nobodys")
	for name, text := range map[string]string{file: "{", nobodys: `{"Network":"10.5.0.0/16","Backend":{"VNI":16777215}}`} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	join := joinFile(t, t.TempDir())
	authority := filepath.Dir(join)
	for _, c := range []struct{ args, flag, value, want string }{
		{"--dataplane=both", "dataplane", "both", "auto, kernel or userspace"},
		{"--df=maybe", "df", "maybe", "clear or set"},
		{"--df=set", "df", "set", "--dataplane=userspace"},
		{"--min-path-mtu=575", "min-path-mtu", "575", "want 576 to 65535"},
		{"--min-path-mtu=1300 --dataplane=kernel", "min-path-mtu", "1300", "userspace"},
		{"--source-check=none", "source-check", "none", "strict, overlay, inner or off"},
		{"--plain-source=none", "plain-source", "none", "drop or allow"},
		{"--egress-mark=0", "egress-mark", "0", "one bit"},
		{"--egress-mark=0x3", "egress-mark", "0x3", "one bit"},
		{"--egress-mark=0x100000000", "egress-mark", "0x100000000", "one bit"},
		{"--source-check=inner", "source-check", "inner", "--peer-cidr"},
		{"--source-check=inner --peer-cidr=10.0.0.1/8", "peer-cidr", "10.0.0.1/8", "bits beyond its length"},
		{"--source-check=inner --peer-cidr=10.0.0.0", "peer-cidr", "10.0.0.0", "want a network"},
		{"--df=set --dataplane=kernel", "df", "set", "--dataplane=userspace"},
		{"--debug-offloads=-none-such", "debug-offloads", "-none-such", ""},
		{"--offload=all", "offload", "all", "want auto, tunnel, socket or plain"},
		{"--offload=plain --dataplane=kernel", "offload", "plain", "only the userspace dataplane"},
		{"--debug-events=no", "debug-events", "no", "want on or off"},
		{"--network=10.5.0.0", "network", "10.5.0.0", "want a network such as"},
		{"--network=10.5.0.0/31", "network", "10.5.0.0/31", ""},
		{"--network=fd00::/48,fd01::/48", "network", "fd00::/48,fd01::/48", "one of each"},
		{"--network=10.5.0.0/16 --net-config-path=" + file, "network", "", "give one of them"},
		{"--net-config-path=" + file, "net-config-path", file, "network config"},
		{"--net-config-path=" + nobodys, "net-config-path", nobodys, "Backend.VNI: 16777215: want at most 9999999"},
		{"--net-config-path=" + fifo, "net-config-path", fifo, "not a FIFO"},
		{"--etcd-username=u --etcd-password-file=" + fifo, "etcd-password-file", fifo, "not a FIFO"},
		{"--etcd-endpoints=https://h:1 --etcd-cafile=" + fifo, "etcd-cafile", fifo, "not a FIFO"},
		{"--etcd-endpoints=https://h:1 --join-file=" + fifo, "join-file", fifo, "not a FIFO"},
		{"--net-config-path=" + dir + "/none", "net-config-path", dir + "/none", "no such file"},
		{"--subnet-file=", "subnet-file", "", "want a path"},
		{"--subnet-file=" + dir, "subnet-file", dir, "is a directory"},
		{"--subnet-file=" + file + "/subnet.env", "subnet-file", file, "is not a directory"},
		{"--networks=a,,b", "networks", "", ""},
		{"--networks=a --subnet-dir=", "subnet-dir", "", "want a directory"},
		{"--networks=a --net-config-path=" + file, "net-config-path", "", "for which"},
		{"--watch-networks --subnet-file=/tmp/x", "subnet-file", "", "--subnet-dir"},
		{"--etcd-prefix=/", "etcd-prefix", "/", "want a path"},
		{"--etcd-prefix=", "etcd-prefix", "", "want a path"},
		{"--etcd-endpoints=", "etcd-endpoints", "", "want at least one URL"},
		{"--etcd-endpoints=http://192.0.2.1:2379,http://", "etcd-endpoints", "entry 2", "want a URL"},
		{"--etcd-endpoints=http://192.0.2.1:2379,192.0.2.2/x", "etcd-endpoints", "entry 2", "want a URL"},
		{"--etcd-endpoints=http://192.0.2.1:2379,foo://x", "etcd-endpoints", "entry 2", "want a URL"},
		{"--etcd-endpoints=https://192.0.2.11:99999", "etcd-endpoints", "entry 1", "with a port from 1 to 65535"},
		{"--etcd-endpoints=192.0.2.11:0", "etcd-endpoints", "entry 1", "with a port from 1 to 65535"},
		{"--kube-subnet-mgr --kube-api-url=https://192.0.2.11:99999", "kube-api-url", "99999", "want a port"},
		{"--etcd-endpoints=http://192.0.2.1:2379,https://192.0.2.2:2379", "etcd-endpoints", "1 of 2", "all of them or none"},
		{"--etcd-endpoints=https://h:1 --etcd-keyfile=" + dir + "/none --etcd-certfile=" + file, "etcd-keyfile", dir + "/none", "no such file"},
		{"--etcd-endpoints=https://h:1 --etcd-cafile=" + dir + "/none", "etcd-cafile", dir + "/none", "no such file"},
		{"--etcd-embedded --etcd-listen-client-url=ftp://127.0.0.1:2379", "etcd-listen-client-url", "ftp://127.0.0.1:2379", "want https://"},
		{"--etcd-embedded --etcd-listen-client-url=127.0.0.1:2379", "etcd-listen-client-url", "127.0.0.1:2379", "want https://"},
		{"--etcd-embedded --etcd-listen-client-url=http://192.0.2.1:2379", "etcd-listen-client-url", "http://192.0.2.1:2379", ErrExposed.Error()},
		{"--etcd-embedded --etcd-listen-client-url=http://[::]:2379", "etcd-listen-client-url", "http://[::]:2379", ErrExposed.Error()},
		{"--etcd-embedded --etcd-listen-client-url=https://127.0.0.1:2379 --pki-dir=" + dir, "pki-dir", dir, "no certificate authority"},
		{"--etcd-embedded --etcd-listen-client-url=https://127.0.0.1:2379 --pki-dir=" + authority + " --etcd-data-dir=/" + strings.Repeat("d", 100), "etcd-data-dir", "ddd", "at most 95 bytes"},
		{"--etcd-endpoints=https://h:1 --join-file=" + dir + "/none", "join-file", dir + "/none", "no such file"},
		{"--etcd-endpoints=https://h:1 --join-file=" + file, "join-file", file, "is not a join file"},
		{"--etcd-endpoints=http://h:1 --join-file=" + join, "join-file", join, "want https://"},
		{"--etcd-endpoints=https://h:1 --etcd-cafile=" + file + " --join-file=" + join, "join-file", join, "--etcd-cafile " + file},
		{"--etcd-endpoints=https://h:1 --etcd-certfile=" + file + " --etcd-keyfile=" + join + " --join-file=" + join, "join-file", join, "--etcd-certfile " + file},
		{"--etcd-embedded --etcd-data-dir=", "etcd-data-dir", "", "want a directory"},
		{"--etcd-embedded --etcd-embedded-rebuild --etcd-endpoints=http://h:1,http://i:1", "etcd-embedded-rebuild", "true", "names 2 servers"},
		{"--lease-ttl=4s", "lease-ttl", "4s", "from 5s to"},
		{"--lease-ttl=1500ms", "lease-ttl", "1.5s", "whole seconds"},
		{"--lease-ttl=5500ms", "lease-ttl", "5.5s", "whole seconds"},
		{"--lease-ttl=100000h", "lease-ttl", "100000h0m0s", "from 5s to"},
		{"--subnet-lease-renew-margin=0", "subnet-lease-renew-margin", "0", "1 to 1439"},
		{"--subnet-lease-renew-margin=1440", "subnet-lease-renew-margin", "1440", "1 to 1439"},
		{"--iface-regex=[", "iface-regex", "[", "missing closing ]"},
		{"--iface-can-reach=here", "iface-can-reach", "here", "want an IP address"},
		{"--iface-can-reach=fe80::1%eth0", "iface-can-reach", "fe80::1%eth0", "want an IP address"},
		{"--public-ip=2001:db8::1", "public-ip", "2001:db8::1", "want an IPv4 address"},
		{"--public-ip=0.0.0.0", "public-ip", "0.0.0.0", "want an IPv4 address"},
		{"--public-ip=224.0.0.1", "public-ip", "224.0.0.1", "want an IPv4 address"},
		{"--public-ip=127.0.0.1", "public-ip", "127.0.0.1", "want an IPv4 address"},
		{"--public-ipv6=::", "public-ipv6", "::", "want an IPv6 address"},
		{"--public-ipv6=::ffff:192.0.2.1", "public-ipv6", "::ffff:192.0.2.1", "want an IPv6 address"},
		{"--healthz-port=65536", "healthz-port", "65536", "want a TCP port"},
		{"--metrics-port=65536", "metrics-port", "65536", "want a TCP port"},
		{"--metrics-port=-1", "metrics-port", "-1", "want a TCP port"},
		{"--healthz-ip=999.1.1.1 --healthz-port=8081", "healthz-ip", "999.1.1.1", "want an address of this host"},
		{"--metrics-ip=fe80:::1 --metrics-port=9799", "metrics-ip", "fe80:::1", "want an address of this host"},
		{"--metrics-ip=127.0.0.1:9799", "metrics-ip", "127.0.0.1:9799", "want an address of this host"},
		{"--healthz-port=8081 --metrics-port=8081", "metrics-port", "8081", "want another port than that of --healthz-port"},
		{"--metrics-peers=all", "metrics-peers", "all", "want on, top or off"},
		{"--probe-interval=99ms", "probe-interval", "99ms", "from 100ms to 1h"},
		{"--probe-interval=-10s", "probe-interval", "-10s", "or 0 for none"},
		{"--probe-interval=61m", "probe-interval", "1h1m0s", "from 100ms to 1h"},
		{"--log-format=xml", "log-format", "xml", "text or json"},
	} {
		_, err := parsed(strings.Fields(c.args), nil)
		if err == nil {
			t.Errorf("%s is accepted", c.args)
			continue
		}
		for _, want := range []string{"--" + c.flag, c.value, c.want} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v does not say %q", c.args, err, want)
			}
		}
		if lines := strings.Count(err.Error(), "\n"); lines > 1 {
			t.Errorf("%s: %d lines for one mistake: %v", c.args, lines+1, err)
		}
	}
}

// TestLimits: the values at the edge of what is refused.
func TestLimits(t *testing.T) {
	for _, args := range []string{
		"--lease-ttl=5s", "--lease-ttl=87600h", "--subnet-lease-renew-margin=1", "--subnet-lease-renew-margin=1439",
		"--probe-interval=0", "--probe-interval=100ms", "--probe-interval=1h", "--healthz-port=65535", "--healthz-port=0", "--healthz-ip=::", "--healthz-ip=localhost",
		"--etcd-prefix=a", "--etcd-endpoints=unix:///run/etcd.sock", "--etcd-endpoints=https://[2001:db8::1]:2379",
		"--etcd-embedded --etcd-listen-client-url=unix:///run/etcd.sock", "--etcd-embedded=false --etcd-data-dir=",
		"--etcd-embedded --etcd-listen-client-url=http://[::1]:2379", "--etcd-embedded --etcd-listen-client-url=http://localhost:2379",
		"--etcd-embedded --etcd-embedded-insecure --etcd-listen-client-url=http://0.0.0.0:2379", "--etcd-listen-client-url=http://0.0.0.0:2379",
		"--source-check=inner --peer-cidr=0.0.0.0/0 --peer-cidr=fd00::/8", "--source-check=outer --dataplane=kernel",
		"--source-check=overlay", "--source-check=off --plain-source=allow --egress-mark=2097152", "--source-check=inner --peer-cidr=10.0.0.0/8 --dataplane=kernel",
		"--df=set --dataplane=userspace", "--df=clear --dataplane=kernel", "--iface-can-reach=2001:db8::1", "--public-ip=10.0.0.1",
		"--kube-subnet-mgr --etcd-prefix=", "--kube-subnet-mgr --etcd-endpoints=", "--kube-subnet-mgr --net-config-path=/none",
	} {
		if _, err := parsed(strings.Fields(args), nil); err != nil {
			t.Errorf("%s: %v", args, err)
		}
	}
}

// TestAllRefusals: one run reports every mistake.
func TestAllRefusals(t *testing.T) {
	_, err := parsed(strings.Fields("--dataplane=x --subnet-file= --etcd-prefix=/ --public-ip=x --healthz-port=65536 --log-format=x"), nil)
	for _, flag := range []string{"dataplane", "subnet-file", "etcd-prefix", "public-ip", "healthz-port", "log-format"} {
		if err == nil || !strings.Contains(err.Error(), "--"+flag+": ") {
			t.Errorf("--%s is not in: %v", flag, err)
		}
	}
}

// TestSecrets: what is or may hold a password appears in no error, wherever it came from.
func TestSecrets(t *testing.T) {
	const secret = "hunter2"
	for _, c := range []struct {
		args []string
		env  map[string]string
	}{
		{args: []string{"--etcd-endpoints=http://u:" + secret + "@192.0.2.1:2379"}},
		{args: []string{`--etcd-endpoints="http://u:` + secret + "@192.0.2.1:2379"}},
		{args: []string{"--etcd-endpoints=http://192.0.2.1:2379,http://u:" + secret + "@%zz"}},
		{env: map[string]string{"OVERLAYD_ETCD_ENDPOINTS": "http://u:" + secret + "@192.0.2.1:2379"}},
		{env: map[string]string{"FLANNELD_ETCD_ENDPOINTS": `"http://u:` + secret + "@192.0.2.1:2379"}},
		{args: []string{"--kube-subnet-mgr", "--kube-api-url=https://u:" + secret + "@192.0.2.1:6443"}},
		{args: []string{"--etcd-password=" + secret, "--etcd-password-file=/none"}},
	} {
		_, err := parsed(c.args, c.env)
		if err = Readable(err); err == nil || strings.Contains(err.Error(), secret) || strings.Contains(err.Error(), "u:") {
			t.Errorf("%q %v: %v", c.args, c.env, err)
		}
	}
	if err := Readable(nil); err != nil {
		t.Error(err)
	}
	_, f := registered()
	for args, want := range map[string]string{"--healthz-port=http": "want a whole number", "--ip-masq=perhaps": "want true or false", "--lease-ttl=soon": "want a time such as 10s or 1h30m"} {
		flag, value, _ := strings.Cut(args, "=")
		if err := Readable(f.Parse([]string{args})); err == nil || err.Error() != fmt.Sprintf("%s: %q: %s", flag, value, want) {
			t.Errorf("%s: %v", args, err)
		}
	}
	for args, shows := range map[string]bool{"--etcd-password=" + secret: true, "": false} {
		o, err := parsed(strings.Fields(args+" --etcd-username=u"), map[string]string{"OVERLAYD_ETCD_PASSWORD": secret})
		if err != nil || (len(o.Warnings) > 0) != shows || o.Etcd.Password != secret {
			t.Errorf("%q: warnings %v, %v", args, o.Warnings, err)
		}
	}
}

// TestPasswordFile: its first line is the password, whatever ends the line.
func TestPasswordFile(t *testing.T) {
	for text, want := range map[string]string{"p": "p", "p\n": "p", "p\r\nmore\n": "p", " p \n": " p ", "\np": "", "": "", "\r\n": ""} {
		file := filepath.Join(t.TempDir(), "password")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		o, err := parsed([]string{"--etcd-password-file", file, "--etcd-username", "u"}, nil)
		if o.Etcd.Password != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v; want %q", text, o.Etcd.Password, err, want)
		}
	}
}

// TestEndpointsOfEmbedded: a daemon that runs etcd uses it, unless it is told another. It asks at the socket in the data directory:
// who takes the TCP port is not the store.
func TestEndpointsOfEmbedded(t *testing.T) {
	const (
		listen = "http://192.0.2.1:2379"
		own    = "unix:///var/lib/overlayd/etcd/client.sock"
	)
	for _, c := range []struct {
		args []string
		env  map[string]string
		want []string
	}{
		{[]string{"--etcd-embedded"}, nil, []string{own}},
		{[]string{"--etcd-embedded", "--etcd-data-dir=/x"}, nil, []string{"unix:///x/client.sock"}},
		{[]string{"--etcd-embedded", "--etcd-listen-client-url=unix:///y"}, nil, []string{"unix:///y"}},
		{[]string{"--etcd-embedded", "--etcd-embedded-insecure", "--etcd-listen-client-url=" + listen}, nil, []string{own}},
		{[]string{"--etcd-embedded", "--etcd-endpoints=http://h:1, http://h:2"}, nil, []string{"http://h:1", "http://h:2"}},
		{[]string{"--etcd-embedded"}, map[string]string{"FLANNELD_ETCD_ENDPOINTS": "http://h:1"}, []string{"http://h:1"}},
		{nil, map[string]string{"OVERLAYD_ETCD_EMBEDDED": "true"}, []string{own}},
	} {
		if o, err := parsed(c.args, c.env); err != nil || !slices.Equal(o.Etcd.Endpoints, c.want) {
			t.Errorf("%q %v: %q, %v; want %q", c.args, c.env, o.Etcd.Endpoints, err, c.want)
		}
	}
}

// TestCompleteOfOneGroup: a command that only asks etcd has its flags, from the environment too.
func TestCompleteOfOneGroup(t *testing.T) {
	var o Etcd
	f := pflag.NewFlagSet("lease", pflag.ContinueOnError)
	o.Register(f)
	env := map[string]string{"FLANNELD_ETCD_PREFIX": "/x//y/", "OVERLAYD_ETCD_EMBEDDED": "true", "FLANNELD_DATAPLANE": "none"}
	if err := o.Complete(f, func(k string) (string, bool) { v, ok := env[k]; return v, ok }); err != nil {
		t.Fatal(err)
	}
	if o.Prefix != "/x/y" || o.PrefixOf("red") != "/x/y/red" || o.PrefixOf("") != "/x/y" || !slices.Equal(o.Endpoints, []string{"unix://" + o.DataDir + "/client.sock"}) {
		t.Errorf("got %+v", o)
	}
	env["OVERLAYD_LEASE_TTL"] = "1s"
	if err := o.Complete(f, func(k string) (string, bool) { v, ok := env[k]; return v, ok }); err == nil || !strings.Contains(err.Error(), `--lease-ttl: "1s"`) {
		t.Errorf("got %v", err)
	}
}

// TestNormalize: one dash becomes two before a name, and nothing else changes, such as the value behind a flag.
func TestNormalize(t *testing.T) {
	_, f := registered()
	for in, want := range map[string]string{
		"-iface eth0":                 "--iface eth0",
		"-iface=eth0":                 "--iface=eth0",
		"--iface eth0":                "--iface eth0",
		"-v 2":                        "--v 2",
		"-v=2":                        "--v=2",
		"-h":                          "-h",
		"-help":                       "--help",
		"-":                           "-",
		"--":                          "--",
		"-iface eth0 -- -iface eth0":  "--iface eth0 -- -iface eth0",
		"-ip-masq lease list -none":   "--ip-masq lease list --none",
		"-log_backtrace_at=:0":        "--log_backtrace_at=:0",
		"-x":                          "-x",
		"-debug-offloads=-udp-gro":    "--debug-offloads=-udp-gro",
		"---iface":                    "---iface",
		"--env-file -/o.env -ip-masq": "--env-file -/o.env --ip-masq",
		"-env-file -/o.env":           "--env-file -/o.env",
		"-iface -- -ip-masq":          "--iface -- --ip-masq",
		"-ip-masq -iface -eth0":       "--ip-masq --iface -eth0", // ip-masq takes no word
		"-public-ip=192.0.2.1 -v -h=": "--public-ip=192.0.2.1 --v -h=",
	} {
		args := strings.Fields(in)
		if got := strings.Join(Normalize(f, args), " "); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
		if strings.Join(args, " ") != in {
			t.Errorf("%q was changed to %q", in, args)
		}
	}
}

// FuzzNormalize: no word is added, lost or changed but for one dash, and a second time changes nothing.
func FuzzNormalize(f *testing.F) {
	for _, s := range []string{"-iface eth0", "--", "- -- -x", "-v=2 -h", "-=", "---"} {
		f.Add(s)
	}
	_, set := registered()
	f.Fuzz(func(t *testing.T, text string) {
		args := strings.Split(text, " ")
		got := Normalize(set, args)
		if len(got) != len(args) {
			t.Fatalf("%q became %q", args, got)
		}
		ended := false
		for i := range args {
			if got[i] != args[i] && (ended || got[i] != "-"+args[i] || !strings.HasPrefix(args[i], "-") || strings.HasPrefix(args[i], "--")) {
				t.Errorf("%q became %q", args[i], got[i])
			}
			ended = ended || args[i] == "--" && (i == 0 || !strings.HasPrefix(args[i-1], "-")) // else it may be a value
		}
		if again := Normalize(set, got); !slices.Equal(again, got) {
			t.Errorf("%q became %q the second time", got, again)
		}
	})
}

// TestUnderlayOptions: what the user says about the underlay arrives as addresses.
func TestUnderlayOptions(t *testing.T) {
	o, err := parsed(strings.Fields("--iface-can-reach=192.0.2.9 --public-ip=203.0.113.1 --public-ipv6=2001:db8::1"), nil)
	if err != nil {
		t.Fatal(err)
	}
	u := o.Config().Underlay
	if u.CanReach != netip.MustParseAddr("192.0.2.9") || u.PublicIP != netip.MustParseAddr("203.0.113.1") || u.PublicIPv6 != netip.MustParseAddr("2001:db8::1") || u.IPv4 || u.IPv6 {
		t.Errorf("got %+v", u)
	}
}
