package cni

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/vishvananda/netlink"

	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// The test binary is also the plugin, and a delegate that writes down how it is called, by the name under which it is run.
const (
	program  = "overlayd-cni"
	recorder = "recorder"
	recordTo = "OVERLAYD_TEST_RECORD"
)

func TestMain(m *testing.M) {
	switch filepath.Base(os.Args[0]) {
	case program:
		Main("overlayd-cni test")
		os.Exit(0)
	case recorder:
		record()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// record is a delegate that speaks CNI 1.1.0, as Debian's do not.
func record() {
	write := func(args *skel.CmdArgs) error {
		f, err := os.OpenFile(os.Getenv(recordTo), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = fmt.Fprintln(f, os.Getenv("CNI_COMMAND"), string(args.StdinData))
		return err
	}
	add := func(args *skel.CmdArgs) error {
		return errors.Join(write(args), types.PrintResult(&types100.Result{CNIVersion: "1.1.0"}, "1.1.0"))
	}
	skel.PluginMainFuncs(skel.CNIFuncs{Add: add, Del: write, Check: write, GC: write, Status: write}, version.VersionsStartingFrom("1.1.0"), recorder)
}

// debian is where containernetworking-plugins has its plugins.
const debian = "/usr/lib/cni"

// node is a host on which the plugin is run.
type node struct {
	*netnstest.NS
	t          testing.TB
	subnetFile string
	data       string // flannel's directory
	addresses  string // host-local's
	path       string
	record     string
}

func newNode(t testing.TB, env string) *node {
	t.Helper()
	n := &node{NS: netnstest.New(t), t: t, subnetFile: writeEnv(t, env), data: t.TempDir(), addresses: t.TempDir(), record: filepath.Join(t.TempDir(), "calls")}
	plugins := t.TempDir()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(exe, filepath.Join(plugins, recorder)); err != nil {
		t.Fatal(err)
	}
	n.path = debian + ":" + plugins
	return n
}

// conf is a network config. more is the rest of the object.
func (n *node) conf(v, more string) string {
	return fmt.Sprintf(`{"name":"net","cniVersion":%q,"type":"overlayd-cni","subnetFile":%q,"dataDir":%q,"ipam":{"dataDir":%q}%s}`, v, n.subnetFile, n.data, n.addresses, more)
}

// answer is what one run of the plugin says.
type answer struct {
	out []byte
	err error // of the process
}

// run runs the plugin. env are more variables.
func (n *node) run(command, conf string, env ...string) (a answer) {
	exe, err := os.Executable()
	if err != nil {
		return answer{err: err}
	}
	cmd := exec.Command(exe)
	cmd.Args = []string{program}
	cmd.Stdin = strings.NewReader(conf)
	cmd.Env = append([]string{"CNI_COMMAND=" + command, "CNI_PATH=" + n.path, recordTo + "=" + n.record, "PATH=" + os.Getenv("PATH")}, env...)
	a.err = n.Do(func() (err error) { a.out, err = cmd.Output(); return err })
	return a
}

// of are the variables that name an attachment.
func of(container, ifName, netns string) []string {
	return []string{"CNI_CONTAINERID=" + container, "CNI_IFNAME=" + ifName, "CNI_NETNS=" + netns}
}

// netns is a path of a namespace.
func netns(ns *netnstest.NS) string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), ns.Handle()) }

// must fails the test unless the plugin says nothing but a result.
func (a answer) must(t testing.TB, what string) []byte {
	t.Helper()
	if a.err != nil {
		t.Fatalf("%s: %v\n%s", what, a.err, a.out)
	}
	return a.out
}

// refusal returns the one error object that a run has printed.
func (a answer) refusal(t testing.TB, what string) types.Error {
	t.Helper()
	var e types.Error
	d := json.NewDecoder(bytes.NewReader(a.out))
	if err := d.Decode(&e); err != nil || a.err == nil || e.Msg == "" || e.Code == 0 {
		t.Fatalf("%s: %v, %v: want one error, got\n%s", what, a.err, err, a.out)
	}
	if rest, _ := io.ReadAll(d.Buffered()); len(bytes.TrimSpace(rest)) > 0 {
		t.Fatalf("%s: more than one object:\n%s", what, a.out)
	}
	return e
}

// addressesOf returns those that host-local has given away.
func (n *node) used() (all []string) {
	n.t.Helper()
	paths, err := filepath.Glob(n.addresses + "/net/*")
	if err != nil {
		n.t.Fatal(err)
	}
	for _, p := range paths {
		if _, err := netip.ParseAddr(filepath.Base(p)); err == nil {
			all = append(all, filepath.Base(p))
		}
	}
	return all
}

// veths returns the host's ends of pods' links.
func (n *node) veths() (all []string) {
	n.t.Helper()
	n.Must(func() error {
		links, err := netlink.LinkList()
		for _, l := range links {
			if l.Type() == "veth" {
				all = append(all, l.Attrs().Name)
			}
		}
		return err
	})
	return all
}

// checkLeft wants that nothing is left of any pod.
func (n *node) checkLeft() {
	n.t.Helper()
	saved, err := os.ReadDir(n.data)
	if used, veths := n.used(), n.veths(); err != nil || len(used)+len(veths)+len(saved) > 0 {
		n.t.Errorf("left: addresses %v, links %v, saved configs %v (%v)", used, veths, saved, err)
	}
}

// TestAddCheckDel: Debian's plugins, which are of CNI 1.0, make and delete pods for callers of every version, which get
// results of their own.
func TestAddCheckDel(t *testing.T) {
	t.Parallel()
	netnstest.RequireRoot(t)
	for _, delegate := range []string{"bridge", "ptp"} {
		for _, v := range []string{"0.2.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
			t.Run(delegate+"/"+v, func(t *testing.T) {
				t.Parallel()
				n, pod := newNode(t, envDual), netnstest.New(t)
				more := fmt.Sprintf(`,"delegate":{"type":%q}`, delegate)
				at := of("pod", "eth0", netns(pod))
				out := n.run("ADD", n.conf(v, more), at...).must(t, "ADD")
				r, err := version.NewResult(v, out)
				if err != nil || r.Version() != v {
					t.Fatalf("%s\nis no result of %s: %v", out, v, err)
				}
				current, err := types100.NewResultFromResult(r)
				if err != nil || len(current.IPs) != 2 {
					t.Fatalf("addresses %v, %v", current, err)
				}
				for _, ip := range current.IPs {
					if !strings.Contains(pod.Run("ip", "addr", "show", "eth0"), ip.Address.IP.String()) {
						t.Errorf("the pod has no %s", ip.Address.IP)
					}
				}
				check := n.run("CHECK", n.conf(v, more+`,"prevResult":`+string(out)), at...)
				if old := v < "0.4.0"; old {
					if e := check.refusal(t, "CHECK"); e.Code != types.ErrIncompatibleCNIVersion {
						t.Errorf("CHECK: %v", e)
					}
				} else {
					check.must(t, "CHECK")
					pod.Run("ip", "link", "set", "eth0", "down")
					pod.Run("ip", "addr", "flush", "eth0")
					n.run("CHECK", n.conf(v, more+`,"prevResult":`+string(out)), at...).refusal(t, "CHECK without addresses")
				}
				for range 2 { // what is gone is not an error
					if out := n.run("DEL", n.conf(v, more), at...).must(t, "DEL"); len(out) > 0 {
						t.Errorf("DEL printed %s", out)
					}
				}
				n.checkLeft()
			})
		}
	}
}

// TestManyAtOnce: 200 pods are made at once, each with addresses of its own, and deleted at once; nothing is left.
func TestManyAtOnce(t *testing.T) {
	netnstest.RequireRoot(t)
	n := newNode(t, env4)
	const pods = 200
	var at [pods][]string
	for i := range at {
		at[i] = of(fmt.Sprint("pod", i), "eth0", netns(netnstest.New(t)))
	}
	for _, command := range []string{"ADD", "DEL"} {
		var wait sync.WaitGroup
		var said [pods]answer
		for i := range at {
			wait.Go(func() { said[i] = n.run(command, n.conf("1.1.0", ""), at[i]...) })
		}
		wait.Wait()
		for i, a := range said {
			a.must(t, fmt.Sprint(command, " ", i))
		}
		if used, veths := len(n.used()), len(n.veths()); command == "ADD" && (used != pods || veths != pods) {
			t.Errorf("%d addresses, %d links", used, veths)
		}
	}
	n.checkLeft()
}

// TestSecondInterface: a container may have two of this network, and each is deleted by itself.
func TestSecondInterface(t *testing.T) {
	t.Parallel()
	netnstest.RequireRoot(t)
	n, pod := newNode(t, env4), netnstest.New(t)
	eth0, net1 := of("pod", "eth0", netns(pod)), of("pod", "net1", netns(pod))
	conf := n.conf("1.0.0", "")
	n.run("ADD", conf, eth0...).must(t, "ADD eth0")
	n.run("ADD", conf, net1...).must(t, "ADD net1")
	n.run("DEL", conf, eth0...).must(t, "DEL eth0")
	if used, veths := n.used(), n.veths(); len(used) != 1 || len(veths) != 1 {
		t.Errorf("after the first: %v, %v", used, veths)
	}
	n.run("DEL", conf, net1...).must(t, "DEL net1")
	n.checkLeft()
}

// TestRefusals: whatever is wrong, there is one error object on standard output, and nothing is made.
func TestRefusals(t *testing.T) {
	t.Parallel()
	netnstest.RequireRoot(t)
	pod := netnstest.New(t)
	good := of("pod", "eth0", netns(pod))
	for name, c := range map[string]struct {
		command, more string
		env           string // of the subnet file
		at            []string
		path          string
		code          uint
		msg           string
	}{
		"no subnet file":         {at: good, code: types.ErrTryAgainLater, msg: "no such file or directory"},
		"half a subnet file":     {env: env4[:56], at: good, code: types.ErrTryAgainLater, msg: "FLANNEL_MTU"},
		"a name with a slash":    {env: env4, at: of("../pod", "eth0", netns(pod)), code: types.ErrInvalidEnvironmentVariables},
		"two dots":               {env: env4, at: of("..", "eth0", netns(pod)), code: types.ErrInvalidEnvironmentVariables},
		"an interface name":      {env: env4, at: of("pod", "../eth0", netns(pod)), code: types.ErrInvalidEnvironmentVariables},
		"a name too long":        {env: env4, at: of(strings.Repeat("c", 251), "eth0", netns(pod)), code: types.ErrInvalidEnvironmentVariables, msg: "254 bytes"},
		"DEL with a slash":       {command: "DEL", env: env4, at: of("a/b", "eth0", ""), code: types.ErrInvalidEnvironmentVariables},
		"the host's namespace":   {env: env4, at: of("pod", "eth0", "/proc/self/ns/net"), code: types.ErrInvalidNetNS},
		"a namespace that lacks": {env: env4, at: of("pod", "eth0", "/nowhere"), code: types.ErrInternal, msg: "plugin bridge"},
		"no plugins":             {env: env4, at: good, path: "/nowhere", code: types.ErrInvalidNetworkConfig, msg: "failed to find plugin"},
		"no such delegate":       {env: env4, more: `,"delegate":{"type":"nope"}`, at: good, code: types.ErrInvalidNetworkConfig, msg: "nope"},
		"delegate is itself":     {env: env4, more: `,"delegate":{"type":"overlayd-cni"}`, at: good, code: types.ErrInvalidNetworkConfig, msg: "itself"},
		"a delegate too new":     {env: env4, more: `,"delegate":{"type":"recorder"}`, at: good, code: types.ErrIncompatibleCNIVersion, msg: "recorder"},
		"unknown version":        {env: env4, more: `,"cniVersion":"9.0.0"`, at: good, code: types.ErrIncompatibleCNIVersion},
		"no JSON":                {env: env4, more: `,`, at: good, code: types.ErrDecodingFailure},
		"network name":           {env: env4, more: `,"name":"a/b"`, at: good, code: types.ErrInvalidNetworkConfig},
		"CHECK of what is not":   {command: "CHECK", env: env4, more: `,"prevResult":{"cniVersion":"1.0.0"}`, at: good, code: types.ErrUnknownContainer, msg: "pod"},
		"CHECK without a result": {command: "CHECK", env: env4, at: good, code: types.ErrInvalidNetworkConfig, msg: "prevResult"},
		"GC of old":              {command: "GC", env: env4, code: types.ErrIncompatibleCNIVersion},
		"an unknown command":     {command: "NOPE", env: env4, at: good, code: types.ErrInvalidEnvironmentVariables},
	} {
		n := newNode(t, c.env)
		if c.env == "" {
			n.subnetFile += ".none"
		}
		if c.path != "" {
			n.path = c.path
		}
		command := c.command
		if command == "" {
			command = "ADD"
		}
		e := n.run(command, n.conf("1.0.0", c.more), c.at...).refusal(t, name)
		if e.Code != c.code || !strings.Contains(e.Msg+e.Details, c.msg) {
			t.Errorf("%s: code %d: %v, want code %d and %q", name, e.Code, &e, c.code, c.msg)
		}
		if used, veths := n.used(), n.veths(); len(used)+len(veths) > 0 {
			t.Errorf("%s: left %v, %v", name, used, veths)
		}
	}
}

// TestDelDamaged: of an interface whose saved config is damaged the address and the link go too, as long as there is a
// subnet file, and otherwise one error says what to do.
func TestDelDamaged(t *testing.T) {
	t.Parallel()
	netnstest.RequireRoot(t)
	n := newNode(t, env4)
	pod := netnstest.New(t)
	at := of("pod", "eth0", netns(pod))
	n.run("ADD", n.conf("1.0.0", ""), at...).must(t, "ADD")
	if err := os.Truncate(filepath.Join(n.data, "pod"), 30); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(n.subnetFile, n.subnetFile+".away"); err != nil {
		t.Fatal(err)
	}
	e := n.run("DEL", n.conf("1.0.0", ""), at...).refusal(t, "DEL without subnet file")
	if e.Code != types.ErrTryAgainLater || !strings.Contains(e.Msg, n.data+"/pod") {
		t.Errorf("%v", &e)
	}
	if err := os.Rename(n.subnetFile+".away", n.subnetFile); err != nil {
		t.Fatal(err)
	}
	n.run("DEL", n.conf("1.0.0", ""), at...).must(t, "DEL")
	n.checkLeft()
}

// TestDelNeedsNothing: a pod is deleted by what is saved: without a subnet file, and with a config that was changed since.
func TestDelNeedsNothing(t *testing.T) {
	t.Parallel()
	netnstest.RequireRoot(t)
	n := newNode(t, env4)
	at := of("pod", "eth0", netns(netnstest.New(t)))
	n.run("ADD", n.conf("1.0.0", ""), at...).must(t, "ADD")
	if err := os.Remove(n.subnetFile); err != nil {
		t.Fatal(err)
	}
	n.run("DEL", n.conf("1.0.0", `,"delegate":{"type":"../x","name":7},"prevResult":{"ips":7}`), at...).must(t, "DEL")
	n.checkLeft()
}

// TestGC: what the runtime has no more is deleted, also what flannel's plugin has made; what it has stays, and so does what
// is another network's.
func TestGC(t *testing.T) {
	t.Parallel()
	netnstest.RequireRoot(t)
	n := newNode(t, env4)
	conf := n.conf("1.1.0", "")
	pods := map[string]*netnstest.NS{}
	for _, name := range []string{"stays", "gone", "flannels", "other", "reused"} {
		pods[name] = netnstest.New(t)
		n.run("ADD", conf, of(name, "eth0", netns(pods[name]))...).must(t, "ADD "+name)
	}
	change := func(name string, by func(*saved)) {
		r, err := read(filepath.Join(n.data, name))
		if err != nil {
			t.Fatal(err)
		}
		by(r)
		if err := os.WriteFile(r.path, encode(r.conf), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	change("flannels", func(r *saved) { delete(r.conf, ownKey) })
	change("other", func(r *saved) { r.conf.set("name", "other") })
	change("reused", func(r *saved) { r.made.Inode++; r.conf.set(ownKey, r.made) }) // the path is another container's now
	if err := os.WriteFile(filepath.Join(n.data, "damaged"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	valid := `,"cni.dev/valid-attachments":[{"containerID":"stays","ifname":"eth0"},{"containerID":"gone","ifname":"net1"}]`
	for range 2 {
		n.run("GC", n.conf("1.1.0", valid)).must(t, "GC")
	}
	if used := n.used(); len(used) != 2 {
		t.Errorf("addresses %v: want that which stays and that of the other network", used)
	}
	for name, want := range map[string]bool{"stays": true, "gone": false, "other": true, "reused": true, "damaged": true} {
		_, err := os.Stat(filepath.Join(n.data, name))
		if saved := err == nil; saved != want && name != "reused" {
			t.Errorf("%s: saved %v, want %v", name, saved, want)
		}
		if pods[name] == nil {
			continue
		}
		if _, err := pods[name].Output("ip", "link", "show", "eth0"); (err == nil) != want {
			t.Errorf("%s: it has its link: %v, want %v", name, err == nil, want)
		}
	}
}

// TestPassedOn: a delegate that speaks CNI 1.1.0 gets that version, and GC and STATUS too.
func TestPassedOn(t *testing.T) {
	t.Parallel()
	netnstest.RequireRoot(t)
	n := newNode(t, env4)
	more := `,"delegate":{"type":"recorder"},"ipam":{"type":"recorder"}`
	at := of("pod", "eth0", netns(netnstest.New(t)))
	valid := `,"cni.dev/valid-attachments":[{"containerID":"pod","ifname":"eth0"}]`
	n.run("ADD", n.conf("1.1.0", more), at...).must(t, "ADD")
	n.run("GC", n.conf("1.1.0", more+valid)).must(t, "GC")
	n.run("STATUS", n.conf("1.1.0", more)).must(t, "STATUS")
	n.run("DEL", n.conf("1.1.0", more), at...).must(t, "DEL")
	text, err := os.ReadFile(n.record)
	if err != nil {
		t.Fatal(err)
	}
	calls := strings.Split(strings.TrimSpace(string(text)), "\n")
	for i, want := range []string{"ADD", "GC", "STATUS", "DEL"} {
		var got struct {
			Name, Type, CNIVersion string
			Valid                  []types.GCAttachment `json:"cni.dev/valid-attachments"`
			Own                    any                  `json:"overlayd"`
		}
		if len(calls) != 4 || !strings.HasPrefix(calls[i], want+" ") {
			t.Fatalf("call %d is no %s:\n%s", i, want, text)
		}
		if err := json.Unmarshal([]byte(calls[i][len(want):]), &got); err != nil || got.Name != "net" || got.Type != recorder || got.CNIVersion != "1.1.0" || got.Own != nil || (len(got.Valid) == 1) != (want == "GC") {
			t.Errorf("%s: %+v, %v", calls[i], got, err)
		}
	}
}

// TestStatus: 50 if no pod could be made, 51 if its daemon is not ready.
func TestStatus(t *testing.T) {
	t.Parallel()
	netnstest.RequireRoot(t)
	n := newNode(t, env4)
	status := func() answer { return n.run("STATUS", n.conf("1.1.0", "")) }
	if out := status().must(t, "STATUS"); len(out) > 0 {
		t.Errorf("printed %s", out)
	}
	serve(t, n.subnetFile+".sock", 503, "[-]lease failed: none is free\n")
	if e := status().refusal(t, "not ready"); e.Code != types.ErrLimitedConnectivity || !strings.Contains(e.Msg, "none is free") {
		t.Errorf("not ready: %d %v", e.Code, &e)
	}
	if err := os.Remove(n.subnetFile); err != nil {
		t.Fatal(err)
	}
	if e := status().refusal(t, "no subnet file"); e.Code != types.ErrPluginNotAvailable || !strings.Contains(e.Details, "none is free") {
		t.Errorf("no subnet file: %d %v", e.Code, &e)
	}
	m := newNode(t, env4)
	m.path = "/nowhere"
	if e := m.run("STATUS", m.conf("1.1.0", "")).refusal(t, "no plugins"); e.Code != types.ErrPluginNotAvailable || !strings.Contains(e.Msg, "failed to find plugin") {
		t.Errorf("no plugins: %d %v", e.Code, &e)
	}
}

// TestVersion: what a runtime asks first.
func TestVersion(t *testing.T) {
	t.Parallel()
	netnstest.RequireRoot(t)
	n := newNode(t, env4)
	info, err := (&version.PluginDecoder{}).Decode(n.run("VERSION", "").must(t, "VERSION"))
	if err != nil || info.SupportedVersions()[len(info.SupportedVersions())-1] != "1.1.0" {
		t.Errorf("%v, %v", info, err)
	}
}
