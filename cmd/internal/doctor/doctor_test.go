package doctor

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/overlayd/overlayd/cmd/internal/status"
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
		case "clock":
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
		"networks_unknown": "daemon", "not_ready": "daemon", "no_session": "daemon", "not_synced": "daemon", "part_failed": "daemon", "etcd_down": "daemon", "endpoint_closed": "daemon", "etcd_closed": "daemon",
		"store_unreachable": "store", "store_refuses": "store", "no_lease": "lease", "lease_lost": "lease", "lease_not_renewed": "lease", "leases_refused": "lease",
		"certificate_expires": "certificates", "certificate_expired": "certificates", "certificate_unreadable": "certificates",
		"part_degraded": "daemon", "config_held": "daemon", "config_refused": "daemon", "entries_unreadable": "store", "probes": "peers",
		"forwarding": "forwarding", "rp_filter": "rp_filter",
		"clone": "duplicate_ip", "peers_path_mtu": "path_mtu", "peers_tunnel_blocked": "peers", "peers_failed": "peers",
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
