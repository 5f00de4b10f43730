package status

import (
	"encoding/json"
	"net/netip"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/controller"
	"github.com/overlayd/overlayd/dataplane"
)

// TestNames: every field of the values has a name in snake_case, for good.
func TestNames(t *testing.T) {
	name := regexp.MustCompile(`^[a-z][a-z0-9_]*$`)
	seen := map[reflect.Type]bool{}
	var check func(reflect.Type)
	check = func(v reflect.Type) {
		for v.Kind() == reflect.Pointer || v.Kind() == reflect.Slice {
			v = v.Elem()
		}
		if v.Kind() != reflect.Struct || seen[v] || !strings.Contains(v.PkgPath(), "overlayd") {
			return
		}
		seen[v] = true
		for i := range v.NumField() {
			f := v.Field(i)
			tag, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if tag == "-" {
				continue
			}
			if !f.Anonymous && !name.MatchString(tag) {
				t.Errorf("%s.%s has the JSON name %q", v, f.Name, tag)
			}
			check(f.Type)
		}
	}
	check(reflect.TypeFor[Network]())
	if len(seen) < 8 {
		t.Errorf("only %d types were seen", len(seen))
	}
}

// TestEmpty: what is always there, of a network that has not begun.
func TestEmpty(t *testing.T) {
	text, err := json.Marshal(Network{V: Version})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"v":1`, `"ready":false`, `"control":{`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%s has no %s", text, want)
		}
	}
	if strings.Contains(string(text), "0001-01-01") || strings.Contains(string(text), "null") {
		t.Errorf("%s has empty values", text)
	}
}

// TestCounters: every counter of a dataplane has its own name.
func TestCounters(t *testing.T) {
	var s dataplane.Stats
	values := reflect.ValueOf(&s).Elem()
	var fill func(reflect.Value)
	n := uint64(0)
	fill = func(v reflect.Value) {
		switch v.Kind() {
		case reflect.Uint64:
			n++
			v.SetUint(n)
		case reflect.Array:
			for i := range v.Len() {
				fill(v.Index(i))
			}
		case reflect.Struct:
			for i := range v.NumField() {
				fill(v.Field(i))
			}
		}
	}
	fill(values)
	byName, byValue := map[string]bool{}, map[uint64]bool{}
	for _, c := range Counters(s) {
		if byName[c.Name] || byValue[c.Value] || c.Value == 0 {
			t.Errorf("%s is there twice, or its value %d", c.Name, c.Value)
		}
		byName[c.Name], byValue[c.Value] = true, true
	}
	if len(byValue) != int(n) {
		t.Errorf("%d counters, want %d", len(byValue), n)
	}
}

// TestUnderlayComesFirst: what follows from a dead underlay is told after it, whether the network was ready or not.
func TestUnderlayComesFirst(t *testing.T) {
	for _, ready := range []bool{true, false} {
		n := Network{Ready: ready, Err: "etcd does not answer", UnderlayFaults: []dataplane.Warning{{ID: dataplane.WarnUnderlay, Text: "eth0 is down", Fix: "set it up"}},
			Store: &control.StoreStatus{Since: time.Unix(1, 0)}}
		d := Report(Process{}, true, []Network{n})
		if len(d.Warnings) < 2 || d.Warnings[0].Text != "eth0 is down" || d.Warnings[0].Fix != "set it up" || d.Verdict.Why != "eth0 is down" {
			t.Errorf("ready %t: %+v", ready, d.Warnings)
		}
	}
}

// TestRefusedIsNoSilence: a store that runs, and is reached the wrong way, is not said to be silent. A file of this host helps
// only against the fault that it causes.
func TestRefusedIsNoSilence(t *testing.T) {
	for _, untrusted := range []bool{true, false} {
		n := Network{Ready: true, Certificates: []Certificate{{File: "join.pem", Expires: time.Now().Add(time.Hour * 9999), Fix: "renew it"}},
			Store: &control.StoreStatus{Since: time.Unix(1, 0), Err: "another name", Refusal: true, Untrusted: untrusted}}
		d := Report(Process{}, true, []Network{n})
		if len(d.Warnings) != 1 || d.Warnings[0].Text != "another name" || (d.Warnings[0].Fix == "renew it") != untrusted {
			t.Errorf("untrusted %t: %+v", untrusted, d.Warnings)
		}
	}
}

// TestCutOff: of a host that reaches no peer it is not said that packets are forwarded, and the peers come before the store.
func TestCutOff(t *testing.T) {
	now := time.Now()
	one, two := netip.MustParsePrefix("10.5.2.0/24"), netip.MustParsePrefix("10.5.3.0/24")
	for _, c := range []struct {
		name   string
		states []ProbeState
		first  string
		says   bool
	}{
		{"no peers", nil, "store_unreachable", true},
		{"one is kept", []ProbeState{ProbeDown, "kept"}, "store_unreachable", true},
		{"one works", []ProbeState{ProbeDown, ProbeOK}, "store_unreachable", true},
		{"not known", []ProbeState{ProbeUnknown, ProbeUnknown}, "store_unreachable", true},
		{"none works", []ProbeState{ProbeDown, ProbeDown}, "peers_" + ReasonTunnelBlocked, false},
	} {
		n := Network{Ready: true, Store: &control.StoreStatus{Kind: "etcd", Since: now, LastAnswer: now}, Probes: &Probes{}}
		for i, state := range c.states {
			subnet := []netip.Prefix{one, two}[i]
			if state == "kept" {
				n.Peers = append(n.Peers, controller.PeerStatus{Subnet: subnet, State: controller.PeerKept, Reason: "lease_missing"})
				continue
			}
			n.Peers = append(n.Peers, controller.PeerStatus{Subnet: subnet, State: controller.PeerUp})
			n.Probes.Peers = append(n.Probes.Peers, Probe{Subnet: subnet, State: state, Reason: ReasonTunnelBlocked, Err: "blocked"})
		}
		all := Judge(Daemon{Ready: true, At: now, Networks: []Network{n}})
		if all[0].ID != c.first {
			t.Errorf("%s: begins with %+v", c.name, all[0])
		}
		for _, w := range all {
			if says := strings.Contains(w.Text, "packets are forwarded"); w.ID == "store_unreachable" && says != c.says {
				t.Errorf("%s: %s", c.name, w.Text)
			}
		}
	}
}

// TestVerdictSaysTheFix: what is known to help is told, and not the log.
func TestVerdictSaysTheFix(t *testing.T) {
	fault := controller.Fault{Reason: "other", Err: "broken", Fix: "mend it"}
	contest := controller.Fault{Reason: control.ReasonContested, Err: "broken", Fix: "mend it"}
	lease := &Lease{Key: "10.5.1.0-24"}
	for _, c := range []struct {
		id string
		n  Network
	}{
		{"no_session", Network{Err: "broken", Fix: "mend it"}},
		{"no_lease", Network{LeaseFault: fault}},
		{"not_synced", Network{SyncFault: fault}},
		{"not_synced", Network{Ready: true, SyncFault: fault}},
		{"leases_refused", Network{Ready: true, Rejected: []controller.EntryStatus{{Key: "k", Fault: fault}}}},
		{"lease_contested", Network{Ready: true, Rejected: []controller.EntryStatus{{Key: "k", Fault: contest}}}},
		{"entries_unreadable", Network{Ready: true, Bad: []controller.EntryStatus{{Key: "k", Fault: fault}}}},
		{"lease_not_renewed", Network{Ready: true, Lease: lease, LeaseFault: fault}},
		{"part_failed", Network{Ready: true, Parts: []dataplane.PartStatus{{Name: "rules", State: dataplane.StateFailed, Err: "broken", Fix: "mend it"}}}},
		{"file_not_written", Network{Ready: true, FileFaults: []controller.Fault{fault}}},
		{"flanneld", Network{Ready: true, Beside: []dataplane.Warning{{ID: "flanneld", Text: "broken", Fix: "mend it"}}}},
		{"etcd_down", Network{Ready: true, Etcd: &Server{Err: "broken", Fix: "mend it"}}},
		{"etcd_closed", Network{Ready: true, Etcd: &Server{Running: true, Closed: "nc has the port", Fix: "mend it"}}},
	} {
		if all := Report(Process{}, true, []Network{c.n}).Warnings; len(all) != 1 || all[0].ID != c.id || all[0].Fix != "mend it" {
			t.Errorf("%s: got %+v", c.id, all)
		}
	}
	bad := Network{Ready: true, Rejected: []controller.EntryStatus{{Key: "a", Fault: fault}, {Key: "k", Name: "thief", Fault: contest}},
		Peers: []controller.PeerStatus{{State: controller.PeerFailed, Reason: "route_taken", Err: "x"}}}
	if d := Report(Process{}, true, []Network{bad}); !strings.Contains(d.Verdict.Why, "an older lease, of thief, has the subnet of this node") {
		t.Errorf("beside other faults: %s", d.Verdict)
	}
	families := []controller.EntryStatus{{Key: "a", Fault: fault}, {Key: "a", Fault: fault}, {Key: "b", Fault: fault}, {Key: "b", Fault: fault}}
	if d := Report(Process{}, true, []Network{{Ready: true, Rejected: families}}); !strings.Contains(d.Verdict.Why, "2 leases are not used") {
		t.Errorf("two leases of two families: %s", d.Verdict)
	}
	peer := controller.PeerStatus{State: controller.PeerFailed, Reason: "route_taken", Err: "somebody else has a route"}
	if all := Report(Process{}, true, []Network{{Ready: true, Peers: []controller.PeerStatus{peer}}}).Warnings; len(all) != 1 || all[0].Fix != "remove the route that is in the way: overlayd doctor names it" {
		t.Errorf("got %+v", all)
	}
}
