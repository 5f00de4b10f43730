package status

import (
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/controller"
	"github.com/overlayd/overlayd/dataplane"
)

// ready is a network in which all is well.
func ready() Network {
	at := time.Unix(1, 0)
	return Network{SessionStart: at, Ready: true, ReadySince: at, Lease: &Lease{}, Store: &control.StoreStatus{Connected: true},
		Parts: []dataplane.PartStatus{{Name: "rules", State: dataplane.StateOK}, {Name: "direct routes", State: dataplane.StateDegraded, Err: "one peer"}}}
}

// readyz is the answer to a path while the networks are so.
func readyz(path string, known bool, networks ...Network) (code int, text string) {
	ready := known
	for _, n := range networks {
		ready = ready && n.Ready
	}
	r := httptest.NewRecorder()
	Handler(func() bool { return ready }, func() []Check { return Checks(known, networks) }).ServeHTTP(r, httptest.NewRequest("GET", path, nil))
	return r.Code, r.Body.String()
}

// TestVerbose: each check has a line, in the form of kube-apiserver's.
func TestVerbose(t *testing.T) {
	const ok = "[+]networks ok\n"
	with := func(change func(*Network)) []Network { n := ready(); change(&n); return []Network{n} }
	for name, c := range map[string]struct {
		known    bool
		networks []Network
		want     string
	}{
		"nothing known": {false, nil, "[-]networks failed: it is not known yet which networks there are\nreadyz check failed\n"},
		"none to serve": {true, nil, ok + "readyz check passed\n"},
		"well":          {true, with(func(*Network) {}), ok + "[+]session ok\n[+]lease ok\n[+]rules ok\n[+]direct-routes ok\n[+]sync ok\n[+]store ok\nreadyz check passed\n"},
		"store lost": {true, with(func(n *Network) { n.Store = &control.StoreStatus{Err: "connection refused"} }),
			ok + "[+]session ok\n[+]lease ok\n[+]rules ok\n[+]direct-routes ok\n[+]sync ok\n[!]store failed, and the daemon stays ready: connection refused\nreadyz check passed\n"},
		"not begun": {true, with(func(n *Network) { *n = Network{} }),
			ok + "[-]session failed: it has not begun: config and underlay are not known yet\nreadyz check failed\n"},
		"ended": {true, with(func(n *Network) { *n = Network{Err: "no interface\nhas it", Store: &control.StoreStatus{}} }),
			ok + `[-]session failed: no interface\nhas it` + "\n[!]store failed, and the daemon stays ready: not connected\nreadyz check failed\n"},
		"no lease yet": {true, with(func(n *Network) { n.Ready, n.Lease, n.Store, n.Parts = false, nil, nil, nil }),
			ok + "[+]session ok\n[-]lease failed: this node has no lease yet\n[+]sync ok\nreadyz check failed\n"},
		"no lease": {true, with(func(n *Network) {
			n.Ready, n.Lease, n.Store, n.Parts, n.LeaseFault = false, nil, nil, nil, controller.Fault{Err: "no free subnet"}
		}), ok + "[+]session ok\n[-]lease failed: no free subnet\n[+]sync ok\nreadyz check failed\n"},
		"no sync yet": {true, with(func(n *Network) { n.Ready, n.Store, n.Parts = false, nil, nil }),
			ok + "[+]session ok\n[+]lease ok\n[-]sync failed: it has not succeeded yet\nreadyz check failed\n"},
		"part failed": {true, with(func(n *Network) {
			n.Ready, n.Store, n.Parts = false, nil, []dataplane.PartStatus{{Name: "rules", State: dataplane.StateFailed}}
		}), ok + "[+]session ok\n[+]lease ok\n[-]rules failed: failed\n[+]sync ok\nreadyz check failed\n"},
		"lost when it was ready": {true, with(func(n *Network) {
			n.Lease, n.LeaseFault, n.Store, n.Parts = nil, controller.Fault{Err: "revoked"}, nil, nil
		}),
			ok + "[+]session ok\n[!]lease failed, and the daemon stays ready: revoked\n[+]sync ok\nreadyz check passed\n"},
		"of several": {true, []Network{{Name: "a"}, {Name: "b", Ready: true, SessionStart: time.Unix(1, 0), Lease: &Lease{}}},
			ok + "[-]a/session failed: it has not begun: config and underlay are not known yet\n[+]b/session ok\n[+]b/lease ok\n[+]b/sync ok\nreadyz check failed\n"},
	} {
		code, got := readyz("/readyz?verbose", c.known, c.networks...)
		if got != c.want || (code == 200) != strings.HasSuffix(c.want, "passed\n") {
			t.Errorf("%s: %d\n%swant\n%s", name, code, got, c.want)
		}
	}
}

// TestVerboseAgrees: whatever is wrong, the list says what /readyz says without it, and a check that is fatal says why.
func TestVerboseAgrees(t *testing.T) {
	for bits := range 1 << 7 {
		is := func(i int) bool { return bits&(1<<i) != 0 }
		n := ready()
		n.Ready = is(0)
		if is(1) && !n.Ready {
			n.SessionStart = time.Time{}
		}
		if is(2) {
			n.Lease = nil
		}
		if is(3) {
			n.LeaseFault.Err = "x"
		}
		if is(4) {
			n.SyncFault.Err = "x"
		}
		if is(5) {
			n.Parts[0].State = dataplane.StateFailed
		}
		if is(6) {
			n.Store.Connected = false
		}
		plain, _ := readyz("/readyz", true, n)
		code, text := readyz("/readyz?verbose", true, n)
		if code != plain || strings.Contains(text, "[-]") != (code != 200) {
			t.Errorf("%b: %d, and with a list %d:\n%s", bits, plain, code, text)
		}
	}
}

// TestVerboseLivez: it depends on nothing.
func TestVerboseLivez(t *testing.T) {
	for _, path := range []string{"/livez?verbose", "/livez?verbose=1&x"} {
		if code, text := readyz(path, false); code != 200 || text != "[+]ping ok\nlivez check passed\n" {
			t.Errorf("%s: %d %s", path, code, text)
		}
	}
}

// TestFaultsAreBounded: an error that others have written can neither forge a line nor fill the answer.
func TestFaultsAreBounded(t *testing.T) {
	_, text := readyz("/readyz?verbose", true, Network{Err: "x\n[+]store ok\nreadyz check passed\n\x00\xff<script>" + strings.Repeat("y", 1<<20)})
	if lines := strings.Count(text, "\n"); lines != 3 || len(text) > control.FaultBytes+200 || strings.Contains(text, "\n[+]store") {
		t.Errorf("%d lines, %d bytes: %.300s", lines, len(text), text)
	}
	if !strings.HasSuffix(text, fmt.Sprintln("readyz check failed")) {
		t.Errorf("got %q", text[len(text)-40:])
	}
}
