package history_test

import (
	"context"
	"time"
)

// etcdFaults are those of an etcd that one history has alone: it is stopped, and started with the data that it had
// earlier, and so with the revisions and etcd leases of that time.
func etcdFaults() []fault {
	return []fault{
		{"empty etcd", func(h *history, _ *machine) (func(), time.Duration) { h.goBack(""); return nil, 0 }},
		{"older snapshot", func(h *history, _ *machine) (func(), time.Duration) {
			if len(h.states) > 0 {
				h.goBack(h.states[h.rng.IntN(len(h.states))])
			}
			return nil, 0
		}},
	}
}

// save keeps the data of etcd, to go back to later.
func (h *history) save() {
	h.restart(func() (string, error) {
		h.states = append(h.states, h.state)
		h.logf("etcd", "saved as %s", h.state)
		return h.world.copied(h.state)
	})
}

// goBack starts etcd with an earlier state; "": with none but the network config.
func (h *history) goBack(state string) {
	call := h.now()
	h.restart(func() (string, error) {
		h.logf("etcd", "goes back to %q", state)
		if state == "" {
			return h.world.newState(), nil
		}
		return h.world.copied(state)
	})
	if state == "" {
		_, err := h.world.client.Put(context.Background(), h.prefix+"/config", h.config)
		h.logf("etcd", "config: %v", err)
	}
	h.note(void, host{}, call)
	h.outage.open()
}

// restart stops etcd and starts it with the state that next returns. All connections end.
func (h *history) restart(next func() (state string, err error)) {
	h.outage.close()
	h.world.stop()
	state, err := next()
	if err == nil {
		err = h.world.start(state)
	}
	if err != nil {
		panic(err) // this host lacks something
	}
	h.state = state
	for _, m := range h.machines {
		if p := m.running(); p != nil {
			p.link.cut()
		}
	}
}
