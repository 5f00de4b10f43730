package status

import (
	"cmp"
	"fmt"
	"net/http"
	"strings"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane"
)

// Check is one line of /readyz?verbose.
type Check struct {
	Name  string
	Fault string // empty: it is ok
	Fatal bool   // a fault makes the daemon not ready
}

// Checks returns what readiness is made of. A network that was ready stays so until its session ends: what fails
// meanwhile is shown and is not fatal, because packets go on. A lost store is never fatal. known says whether it is known
// which networks there are.
func Checks(known bool, networks []Network) []Check {
	all := []Check{{Name: "networks", Fault: map[bool]string{false: "it is not known yet which networks there are"}[known], Fatal: true}}
	for i := range networks {
		all = append(all, networks[i].checks()...)
	}
	return all
}

// checks returns those of one network. At least one is fatal if it is not ready.
func (n *Network) checks() (all []Check) {
	failed := false
	add := func(name, fault string) {
		all = append(all, Check{n.checkName(name), control.Printable(fault, control.FaultBytes), !n.Ready})
		failed = failed || fault != ""
	}
	if n.SessionStart.IsZero() {
		add("session", cmp.Or(n.Err, "it has not begun: config and underlay are not known yet"))
	} else {
		add("session", "")
		add("lease", n.leaseFault())
		for _, p := range n.Parts {
			add(strings.ReplaceAll(p.Name, " ", "-"), partFault(p))
		}
		add("sync", n.syncFault(failed))
	}
	if n.Store != nil {
		all = append(all, Check{Name: n.checkName("store"), Fault: control.Printable(storeFault(n.Store), control.FaultBytes)})
	}
	return all
}

func (n *Network) checkName(name string) string {
	if n.Name == "" {
		return name
	}
	return n.Name + "/" + name
}

func (n *Network) leaseFault() string {
	switch {
	case n.LeaseFault.Err != "":
		return n.LeaseFault.Err
	case n.Lease == nil:
		return "this node has no lease yet"
	}
	return ""
}

// syncFault says why not everything has worked once. failed: another check tells already.
func (n *Network) syncFault(failed bool) string {
	if n.SyncFault.Err == "" && !n.Ready && !failed {
		return "it has not succeeded yet"
	}
	return n.SyncFault.Err
}

func partFault(p dataplane.PartStatus) string {
	if p.State == dataplane.StateFailed {
		return cmp.Or(p.Err, string(p.State))
	}
	return ""
}

func storeFault(s *control.StoreStatus) string {
	if s.Connected {
		return s.Err
	}
	return cmp.Or(s.Err, "not connected")
}

// verbose writes a line for each check, as kube-apiserver does. What fails and is not fatal has an exclamation mark.
func verbose(w http.ResponseWriter, endpoint string, checks []Check) {
	var text strings.Builder
	code, result := http.StatusOK, "passed"
	for _, c := range checks {
		switch {
		case c.Fault == "":
			fmt.Fprintf(&text, "[+]%s ok\n", c.Name)
		case c.Fatal:
			code, result = http.StatusServiceUnavailable, "failed"
			fmt.Fprintf(&text, "[-]%s failed: %s\n", c.Name, c.Fault)
		default:
			fmt.Fprintf(&text, "[!]%s failed, and the daemon stays ready: %s\n", c.Name, c.Fault)
		}
	}
	answer(w, code, fmt.Sprintf("%s%s check %s\n", text.String(), endpoint, result))
}
