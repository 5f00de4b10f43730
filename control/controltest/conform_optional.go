package controltest

import (
	"context"
	"testing"
	"time"

	"github.com/overlayd/overlayd/control"
)

// optionalInterfaces checks those interfaces beside control.Store that a Store has.
func optionalInterfaces(t *testing.T, h Harness) {
	if s, ok := h.Open(t).(control.ConfigWriter); ok {
		checkConfigWriter(t, s)
	}
	h.SetConfig(t, []byte(config))
	s, l := acquire(t, h, 1)
	_, other := acquire(t, h, 2)
	n, _ := node(1)
	if s, ok := s.(control.Publisher); ok {
		leases, err := s.Published(t.Context(), n)
		if err != nil || len(leases) != 1 || leases[0].Key() != l.Key() {
			t.Errorf("published %+v, %v, want %s and not %s", leases, err, l.Key(), other.Key())
		}
	}
	if s, ok := s.(control.LiveNodeFinder); ok {
		them, _ := node(2)
		for _, c := range []struct {
			asks  control.Node
			lives bool
		}{{n, false}, {them, true}} {
			if host, lives, err := s.OtherNode(t.Context(), c.asks, n.PublicIP); err != nil || lives != c.lives || lives && host != n.Name {
				t.Errorf("%s finds %q alive: %t, %v", c.asks.Name, host, lives, err)
			}
		}
	}
	if s, ok := s.(control.StoreReporter); ok {
		if st := s.Status(); st.Kind == "" || !st.Connected || st.Err != "" || st.LastAnswer.IsZero() || st.Since.IsZero() {
			t.Errorf("status %+v", st)
		}
	}
	if s, ok := s.(control.ConfigWatcher); ok {
		checkConfigWatcher(t, h, s)
	}
}

// checkConfigWriter: only the first config is written.
func checkConfigWriter(t *testing.T, s control.ConfigWriter) {
	for _, want := range []bool{true, false} {
		if created, err := s.Init(t.Context(), []byte(config)); err != nil || created != want {
			t.Errorf("init: %v, %v, want %v", created, err, want)
		}
	}
	if _, err := s.Init(t.Context(), []byte("{")); err == nil {
		t.Error("a bad config is written")
	}
}

// checkConfigWatcher: the watcher sends the config, each change of it, an error while the store has no config that can be used, and the
// config when it is back. At the end it closes the channel.
func checkConfigWatcher(t *testing.T, h Harness, s control.ConfigWatcher) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	networks := s.WatchNetwork(ctx)
	const other = `{"Network":"10.3.0.0/16","Backend":{"Type":"vxlan","VNI":8}}`
	for i, text := range []string{config, other, `{"Network":`, other, `{"Network":"10.3.0.0/16","Backend":{"Type":"udp"}}`, "", other} {
		if text == "" {
			h.SetConfig(t, nil)
		} else {
			h.SetConfig(t, []byte(text))
		}
		want, unusable := control.ParseNetwork([]byte(text))
		awaitConfig(t, networks, func(got control.StoredNetwork) bool {
			if unusable != nil {
				return got.Err != nil && got.Network == control.Network{}
			}
			return got.Err == nil && got.Network.Backend == want.Backend && got.Network.Network == want.Network
		}, "%d: %q", i, text)
	}
	cancel()
	for range networks { // until it is closed
	}
}

// awaitConfig waits for one that is wanted. A file may be seen half written, which is not.
func awaitConfig(t *testing.T, networks <-chan control.StoredNetwork, wanted func(control.StoredNetwork) bool, format string, args ...any) {
	t.Helper()
	late := time.After(deadline)
	for {
		select {
		case got := <-networks:
			if wanted(got) {
				return
			}
			t.Logf("config "+format+": sent %+v", append(args, got)...)
		case <-late:
			t.Fatalf("config not sent: "+format, args...)
		}
	}
}
