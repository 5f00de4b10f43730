package doctor

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/overlayd/overlayd/cmd/internal/admin"
	"github.com/overlayd/overlayd/cmd/internal/processtest"
	"github.com/overlayd/overlayd/cmd/internal/status"
	"github.com/overlayd/overlayd/dataplane/netnstest"
	"github.com/overlayd/overlayd/dataplane/subnetfile"
)

// states returns the worst state of each check.
func states(all []Result) map[string]State {
	order := map[State]int{OK: 0, Unknown: 1, Warn: 2, Fail: 3}
	worst := map[string]State{}
	for _, r := range all {
		if was, known := worst[r.ID]; !known || order[r.State] > order[was] {
			worst[r.ID] = r.State
		}
	}
	return worst
}

// TestChecksAreDocumented: each check has an id of its own, a result without a daemon, and a section for users.
func TestChecksAreDocumented(t *testing.T) {
	doc, err := os.ReadFile("../../../docs/troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	all := Run(Scene{Absent: errors.New("nobody listens"), Files: []string{filepath.Join(t.TempDir(), "subnet.env")}})
	got := states(all)
	if len(got) != len(checks()) {
		t.Errorf("%d checks, %d ids", len(checks()), len(got))
	}
	for id, state := range got {
		want := Unknown
		switch id {
		case "daemon":
			want = Fail
		case "rights":
			want = OK
		case "clock", "dataplanes":
			want = state // that of this machine
		}
		if state != want {
			t.Errorf("%s is %s without a daemon, want %s", id, state, want)
		}
		if !strings.Contains(string(doc), "\n### "+id+"\n") {
			t.Errorf("docs/troubleshooting.md has no section %s", id)
		}
	}
	for _, r := range all {
		if (r.State == Fail || r.State == Warn) != (r.Fix != "") || r.Text == "" {
			t.Errorf("%+v", r)
		}
	}
	if !Fails(all) {
		t.Error("a daemon that does not answer is no failure")
	}
}

// TestWarningsHaveTheirCheck: what the daemon warns of is the result of the check that explains it, and its section for users names it.
func TestWarningsHaveTheirCheck(t *testing.T) {
	doc, err := os.ReadFile("../../../docs/troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	for warning, check := range map[string]string{
		"networks_unknown": "daemon", "not_ready": "daemon", "no_session": "daemon", "not_synced": "daemon", "part_failed": "daemon", "etcd_down": "daemon", "endpoint_closed": "daemon", "etcd_closed": "daemon", "log_blocked": "daemon",
		"store_unreachable": "store", "store_refuses": "store", "endpoint_unused": "store", "no_lease": "lease", "lease_lost": "lease", "lease_contested": "lease", "lease_not_renewed": "lease", "leases_refused": "lease",
		"certificate_expires": "certificates", "certificate_expired": "certificates", "certificate_unreadable": "certificates", "certificate_not_yet_valid": "certificates",
		"part_degraded": "daemon", "repair_undone": "daemon", "file_not_written": "daemon", "config_held": "daemon", "config_refused": "daemon", "entries_unreadable": "store", "probes": "peers",
		"forwarding": "forwarding", "underlay": "underlay", "rp_filter": "rp_filter",
		"clone": "duplicate_ip", "flanneld": "flanneld", "peers_path_mtu": "path_mtu", "peers_tunnel_blocked": "peers", "peers_failed": "peers",
	} {
		d := status.Daemon{At: time.Now(), Networks: []status.Network{{VNI: 7_654_321}}}
		d.Warnings = []status.Warning{{ID: warning, State: status.Degraded, Text: "it is so", Fix: "do it"}}
		found := false
		for _, r := range Run(Scene{Daemon: &d}) {
			if r.Text != "it is so" {
				continue
			}
			if found = true; r.ID != check || r.State != Fail || r.Fix != "do it" {
				t.Errorf("%s: %+v, want check %s", warning, r, check)
			}
		}
		if !found {
			t.Errorf("no check tells of %s", warning)
		}
		_, section, _ := strings.Cut(string(doc), "\n### "+check+"\n")
		if section, _, _ = strings.Cut(section, "\n### "); !strings.Contains(section, "`"+warning+"`") {
			t.Errorf("docs/troubleshooting.md does not name %s in section %s", warning, check)
		}
	}
}

// TestFlanneldBeside: a flanneld of the same network is named, or its rules are if it is not seen; one of another network is no fault.
func TestFlanneldBeside(t *testing.T) {
	for _, c := range []struct {
		name  string
		runs  bool
		rules string // network
		want  State
		says  string
	}{
		{"none", false, "", OK, "no flanneld"},
		{"it runs", true, "10.5.0.0/16", Fail, "flanneld (process "},
		{"it is not seen", false, "10.5.0.0/16", Warn, "traffic rules for 10.5.0.0/16"},
		{"another network", false, "10.6.0.0/16", OK, "no flanneld"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ns, file := netnstest.New(t), filepath.Join(t.TempDir(), "subnet.env")
			subnet := netip.MustParsePrefix("10.5.7.0/24")
			if err := subnetfile.Write(file, subnetfile.File{Network: netip.MustParsePrefix("10.5.0.0/16"), Subnet: subnet, MTU: 1450}); err != nil {
				t.Fatal(err)
			}
			if c.runs {
				processtest.Flanneld(t, ns.Start, "-subnet-file", file)
			}
			if c.rules != "" {
				ns.Run("nft", "table ip flannel-ipv4 { chain forward { type filter hook forward priority 0; ip saddr "+c.rules+" accept; }; }")
			}
			d := &status.Daemon{At: time.Now(), Networks: []status.Network{{SessionStart: time.Now(), Lease: &status.Lease{Subnets: []netip.Prefix{subnet}}}}}
			var all []Result
			ns.Must(func() error { all = Run(Scene{Daemon: d, Files: []string{file}}); return nil })
			for _, r := range all {
				if r.ID == "flanneld" && (r.State != c.want || !strings.Contains(r.Text, c.says)) {
					t.Errorf("%+v, want %s, %s", r, c.want, c.says)
				}
			}
		})
	}
}

// TestNothingUnseenIsOK: a check that could not look is unknown and says what has to be done, whatever the backend may be.
func TestNothingUnseenIsOK(t *testing.T) {
	const start, session = "start overlayd", "see the check daemon"
	daemon := func(n status.Network) *status.Daemon {
		return &status.Daemon{At: time.Now(), Networks: []status.Network{n}}
	}
	subnet := netip.MustParsePrefix("10.5.7.0/24")
	served := status.Network{SessionStart: time.Now(), Mode: "userspace", VNI: 7, Port: 8472, Lease: &status.Lease{Subnets: []netip.Prefix{subnet}}}
	plain := status.Network{SessionStart: time.Now(), Lease: &status.Lease{Subnets: []netip.Prefix{subnet}}}
	for _, c := range []struct {
		name   string
		daemon *status.Daemon
		file   bool
		device string // how flannel.7 is made; empty: it is not there
		todo   string // of each check that is unknown for want of a session
		want   map[string]State
	}{
		{"TUN device of a daemon that was killed", nil, true, "tuntap add flannel.7 mode tun", start,
			map[string]State{"device": Fail, "underlay": Unknown, "udp_port": Unknown, "guard": Warn, "mac": Unknown, "path_mtu": Unknown, "rp_filter": Unknown, "peers": Unknown, "cni_mtu": Unknown}},
		{"vxlan device of a daemon that was killed", nil, true, "link add flannel.7 mtu 1450 type vxlan id 7 local 192.0.2.2 dev lo dstport 8472", start,
			map[string]State{"device": OK, "underlay": Fail, "udp_port": OK, "guard": Warn, "mac": Unknown, "path_mtu": OK, "peers": Unknown}},
		{"nothing but the file", nil, true, "", start,
			map[string]State{"device": Unknown, "udp_port": Unknown, "guard": Unknown, "path_mtu": Unknown, "peers": Unknown}},
		{"no session", daemon(status.Network{}), true, "tuntap add flannel.7 mode tun", session,
			map[string]State{"device": Fail, "udp_port": Unknown, "guard": Fail, "cni_mtu": Unknown, "peers": Unknown, "lease": Unknown, "duplicate_ip": Unknown}},
		{"no session and no file", daemon(status.Network{}), false, "", session,
			map[string]State{"device": Unknown, "udp_port": Unknown, "guard": Unknown, "forwarding": Unknown, "forward_chains": Unknown, "foreign_routes": Unknown,
				"br_netfilter": Unknown, "cni_mtu": Unknown, "peers": Unknown, "lease": Unknown}},
		{"no network", &status.Daemon{At: time.Now()}, false, "", "", map[string]State{"device": Unknown, "peers": Unknown, "certificates": Unknown}},
		{"session without its device", daemon(served), true, "", "", map[string]State{"device": Fail, "mac": OK, "peers": OK}},
		{"session without a tunnel", daemon(plain), true, "", "",
			map[string]State{"device": OK, "udp_port": OK, "guard": OK, "mac": OK, "path_mtu": OK, "peers": OK}},
	} {
		t.Run(c.name, func(t *testing.T) {
			ns := netnstest.New(t)
			scene := Scene{Daemon: c.daemon, Files: []string{filepath.Join(t.TempDir(), "subnet.env")}}
			if c.file {
				f := subnetfile.File{Network: netip.MustParsePrefix("10.5.0.0/16"), Subnet: subnet, MTU: 1450}
				if err := subnetfile.Write(scene.Files[0], f); err != nil {
					t.Fatal(err)
				}
			}
			if c.device != "" {
				ns.Run("ip", strings.Fields(c.device)...)
				ns.Run("ip", "link", "set", "flannel.7", "up")
				ns.Addr("flannel.7", "10.5.7.0/32")
			}
			var all []Result
			ns.Must(func() error { all = Run(scene); return nil })
			got := states(all)
			for id, want := range c.want {
				if got[id] != want {
					t.Errorf("%s is %s, want %s", id, got[id], want)
				}
			}
			for _, r := range all {
				other := r.ID == "duplicate_ip" || r.ID == "cni_mtu" // they wait for the store, and for pods
				if r.State == Unknown && c.want[r.ID] == Unknown && !other && !strings.Contains(r.Text, c.todo) {
					t.Errorf("%s does not say what to do: %s", r.ID, r.Text)
				}
			}
		})
	}
}

// TestMuteDaemon: a daemon that is there and does not answer, as one that was stopped by a signal, has to be restarted, and not started.
func TestMuteDaemon(t *testing.T) {
	file := filepath.Join(t.TempDir(), "subnet.env")
	f := subnetfile.File{Network: netip.MustParsePrefix("10.5.0.0/16"), Subnet: netip.MustParsePrefix("10.5.7.0/24"), MTU: 1450}
	if err := subnetfile.Write(file, f); err != nil {
		t.Fatal(err)
	}
	var all []Result
	netnstest.New(t).Must(func() error {
		all = Run(Scene{Absent: fmt.Errorf("%w: ask it: timeout", admin.ErrAnswer), Files: []string{file}})
		return nil
	})
	for _, r := range all {
		if strings.Contains(r.Text+r.Fix, "start overlayd") {
			t.Errorf("%+v", r)
		}
		if r.ID == "daemon" && (r.State != Fail || !strings.Contains(r.Fix, "restart the daemon")) {
			t.Errorf("%+v", r)
		}
	}
}

// TestHeldTUN: a TUN device that somebody holds without a daemon, as systemd does, is not taken for one whose packets are carried.
func TestHeldTUN(t *testing.T) {
	ns := netnstest.New(t)
	file := filepath.Join(t.TempDir(), "subnet.env")
	if err := subnetfile.Write(file, subnetfile.File{Network: netip.MustParsePrefix("10.5.0.0/16"), Subnet: netip.MustParsePrefix("10.5.7.0/24")}); err != nil {
		t.Fatal(err)
	}
	held := &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: "flannel.7"}, Mode: netlink.TUNTAP_MODE_TUN, Queues: 1, NonPersist: true}
	ns.Must(func() error { return errors.Join(netlink.LinkAdd(held), netlink.LinkSetUp(held)) })
	for _, f := range held.Fds {
		defer f.Close()
	}
	ns.Addr("flannel.7", "10.5.7.0/32")
	ns.Must(func() error {
		for _, r := range Run(Scene{Files: []string{file}}) {
			if r.ID == "device" && (r.State != Unknown || !strings.Contains(r.Text, "start overlayd")) {
				t.Errorf("%+v", r)
			}
		}
		return nil
	})
}

// TestDropsBeforeReading: what the kernel drops has two causes, which the check names, and how to see which it is.
func TestDropsBeforeReading(t *testing.T) {
	for n, want := range map[uint64][]string{0: {"no datagram", ""}, 200: {"200 datagrams", "checksum", "InCsumErrors"}} {
		got := checkBuffer(&overlay{status: &status.Network{Counters: map[string]uint64{"drops_queue_full": n}}})
		for _, part := range want {
			if len(got) != 1 || !strings.Contains(got[0].Text+got[0].Fix, part) {
				t.Errorf("%d: %+v, want %q", n, got, part)
			}
		}
	}
}
