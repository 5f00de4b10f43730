package guard

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/overlayd/overlayd/dataplane"
)

// TestEarlyPackets: a new peer may send before this host has seen its lease. These few packets are counted, and nobody is warned. Of others there is a warning.
func TestEarlyPackets(t *testing.T) {
	for name, c := range map[string]struct {
		packets int
		joins   bool
		instead bool // of another
		warns   bool
	}{
		"of a new peer":                {packets: 3, joins: true},
		"of one that replaces another": {packets: 3, joins: true, instead: true},
		"of a stranger":                {packets: 3, warns: true},
		"too many for a peer":          {packets: early + 1, joins: true, warns: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, false)
			var log bytes.Buffer
			w.config = func(c *Config) { c.Log = slog.New(slog.NewTextHandler(&log, nil)) }
			w.join()
			h := w.hosts[0]
			look := func() { h.Must(func() error { h.guard.look(func() {}); return nil }) }
			look()
			for range c.packets {
				sendRaw(w.stranger, packet(w.strange, h.addr, 5, testPort, h.frame(1, packet(w.hosts[1].podAddr(false), h.podAddr(false), 1, receivePort, []byte(name)))))
			}
			h.until(func(d Drops) bool { return d[dataplane.DropUnknownVTEP] >= uint64(c.packets) })
			if c.joins {
				v := w.lastWanted(h)
				if c.instead {
					v.Peers = v.Peers[1:]
				}
				v.Peers = append(v.Peers, dataplane.Peer{VTEP: dataplane.VTEP{Addr: w.strange, MAC: dataplane.MAC(w.strange, 1), VNI: 1}, Subnets: prefixes("10.42.9.0/24")})
				h.guard.sync(t, h.NS, v)
			}
			look()
			if got := strings.Contains(log.String(), "reason=unknown_vtep"); got != c.warns {
				t.Errorf("warned: %v, want %v: %s", got, c.warns, log.String())
			}
			sendRaw(w.stranger, packet(w.hosts[1].podAddr(false), h.addr, 5, testPort, h.frame(1, nil)))
			h.until(func(d Drops) bool { return d[dataplane.DropUnknownVTEP] > uint64(c.packets) })
			look()
			if !strings.Contains(log.String(), "reason=unknown_vtep") {
				t.Error("no warning of a stranger that came later")
			}
		})
	}
}

// until waits until what the guard has dropped since Open is so.
func (h *host) until(so func(Drops) bool) {
	h.w.t.Helper()
	eventually(h.w.t, "dropped", func() bool {
		var d Drops
		h.Must(func() error { d = h.guard.Drops(); return nil })
		return so(d)
	})
}
