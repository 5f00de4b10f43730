package node

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/overlayd/overlayd/control"
)

// TestConfigIsPutBack: a daemon that has the config in force for an empty store writes it again when it is gone, as soon as the store
// takes it, and over no other one. The session goes on.
func TestConfigIsPutBack(t *testing.T) {
	const first, other = `{"Network":"10.5.0.0/16"}`, `{"Network":"10.6.0.0/16"}`
	gone := fmt.Errorf("%w: no key", control.ErrNoNetwork)
	_, bad := control.ParseNetwork([]byte("{"))
	for name, c := range map[string]struct {
		first, stored string
		err           error // that the watch tells
		refused       bool  // ten times
		inits         int
		repairs       uint64
		says          string
	}{
		"gone":             {first, "", gone, false, 1, 1, "network config was gone from the store: written again"},
		"gone, no room":    {first, "", gone, true, 11, 1, "cannot be written now: trying again until it can"},
		"another is there": {first, other, gone, false, 1, 0, ""},
		"bad":              {first, "{", bad, false, 0, 0, ""},
		"given another":    {other, "", gone, false, 0, 0, "is not the one in force"},
		"given none":       {"", "", gone, false, 0, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.cfg.FirstConfig = nil
				if c.first != "" {
					w.cfg.FirstConfig = []byte(c.first)
				}
				n, store := w.waiting()
				if c.stored != "" {
					w.setConfig(c.stored)
				}
				if c.refused {
					store.refuse, store.refusals = errors.New("no space"), 10
				}
				config, err := control.ParseNetwork([]byte(first))
				if err != nil {
					t.Fatal(err)
				}
				s := &Session{network: n, config: config}
				s.iface.MTU = 1500
				configs, done := make(chan control.StoredNetwork), make(chan error)
				go func() { done <- s.applyChanges(t.Context(), nil, configs, func(int) {}) }()
				configs <- control.StoredNetwork{Err: c.err}
				time.Sleep(15 * time.Second) // of the bubble
				close(configs)
				if err := <-done; err != nil {
					t.Errorf("the session ends: %v", err)
				}
				if got := n.Status().ConfigRepairs; store.inits != c.inits || got != c.repairs {
					t.Errorf("%d tries, %d repairs, want %d and %d:\n%s", store.inits, got, c.inits, c.repairs, w.log.text())
				}
				if c.says != "" && w.log.count(c.says) != 1 || c.says == "" && w.log.count("network config") > 0 {
					t.Errorf("want once %q:\n%s", c.says, w.log.text())
				}
			})
		})
	}
}
