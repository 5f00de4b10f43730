package history_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/anishathalye/porcupine"
)

// kind is what an operation does to the register of one subnet.
type kind int

const (
	take   kind = iota // the store has given the subnet to a host, or renewed it
	drop               // the host may not serve it any more
	void               // somebody took the entry out of the store
	silent             // the host has been out of reach for as long as others wait before they take its place
)

// host is whoever may own a subnet: a machine, over all restarts of its daemon.
type host struct {
	machine int
	id      string     // of its node file, which a clone has too
	ip      netip.Addr // that it publishes
}

// input is the input of an operation; it has no output.
type input struct {
	kind kind
	by   host // of void: nobody
}

// register is the state of one subnet. The zero value is: nobody's.
type register struct {
	owned  bool
	owner  host
	silent bool // see there
}

// heir reports whether h takes the place of a host that is gone, by its node file or its address.
func (r register) heir(h host) bool {
	return r.silent && (h.id == r.owner.id || h.ip == r.owner.ip)
}

// step applies one operation. Only a take can be wrong: somebody else has the subnet.
func (r register) step(in input) (bool, register) {
	mine := r.owned && r.owner.machine == in.by.machine
	switch in.kind {
	case take:
		if r.owned && !mine && !r.heir(in.by) {
			return false, r
		}
		return true, register{owned: true, owner: in.by}
	case drop:
		if mine {
			return true, register{}
		}
	case void:
		return true, register{}
	case silent:
		r.silent = r.silent || mine
	}
	return true, r
}

// model is the register for porcupine; each subnet is checked alone.
var model = porcupine.Model{
	Init: func() any { return register{} },
	Step: func(state, in, _ any) (bool, any) { return state.(register).step(in.(input)) },
}

// TestModel: what the register allows.
func TestModel(t *testing.T) {
	a := host{0, "a", netip.MustParseAddr("192.0.0.1")}
	b := host{1, "b", netip.MustParseAddr("192.0.0.2")}
	clone := host{2, "a", netip.MustParseAddr("192.0.0.3")}
	at := func(call, ret int64, k kind, h host) porcupine.Operation {
		return porcupine.Operation{Call: call, Return: ret, Input: input{k, h}, ClientId: h.machine}
	}
	for _, c := range []struct {
		name string
		ops  []porcupine.Operation
		ok   bool
	}{
		{"renewals", []porcupine.Operation{at(0, 1, take, a), at(2, 3, take, a), at(5, 6, take, a)}, true},
		{"one after the other", []porcupine.Operation{at(0, 1, take, a), at(2, 2, drop, a), at(3, 4, take, b)}, true},
		{"two owners", []porcupine.Operation{at(0, 1, take, a), at(3, 4, take, b), at(5, 5, drop, a)}, false},
		{"the end is within the request of the next", []porcupine.Operation{at(0, 1, take, a), at(3, 5, take, b), at(4, 4, drop, a)}, true},
		{"an answer that comes late", []porcupine.Operation{at(0, 9, take, a), at(3, 3, drop, a), at(4, 5, take, b)}, true},
		{"a request that is late", []porcupine.Operation{at(0, 1, take, a), at(3, 3, drop, a), at(4, 5, take, b), at(6, 7, take, a)}, false},
		{"the entry was deleted", []porcupine.Operation{at(0, 1, take, a), at(2, 3, void, host{}), at(4, 5, take, b)}, true},
		{"renewed after another has it", []porcupine.Operation{at(0, 1, take, a), at(2, 3, void, host{}), at(4, 5, take, b), at(6, 7, take, a)}, false},
		{"somebody else's drop", []porcupine.Operation{at(0, 1, take, a), at(2, 3, drop, b), at(4, 5, take, b)}, false},
		{"a clone of a living host", []porcupine.Operation{at(0, 1, take, a), at(4, 5, take, clone)}, false},
		{"a clone of a host that is gone", []porcupine.Operation{at(0, 1, take, a), at(2, 2, silent, a), at(4, 5, take, clone)}, true},
		{"a stranger after a host that is silent", []porcupine.Operation{at(0, 1, take, a), at(2, 2, silent, a), at(4, 5, take, b)}, false},
		{"a clone after the host is back", []porcupine.Operation{at(0, 1, take, a), at(2, 2, silent, a), at(4, 5, take, a), at(6, 7, take, clone)}, false},
	} {
		if got := porcupine.CheckOperations(model, c.ops); got != c.ok {
			t.Errorf("%s: got %v, want %v", c.name, got, c.ok)
		}
	}
}

// String says who a host is, for a report.
func (h host) String() string { return fmt.Sprintf("%s id %.4s", h.ip, h.id) }

func (h host) name() string { return fmt.Sprintf("m%d", h.machine) }
