package uplink

import (
	"log/slog"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// TestGivenUpWhileBroughtUp: a worker gives up a device that somebody has set down, while Refresh brings it up.
func TestGivenUpWhileBroughtUp(t *testing.T) {
	n := netnstest.New(t)
	n.Addr("lo", "192.0.2.1/32")
	n.Must(func() error {
		u, err := Open(Config{Log: slog.New(slog.DiscardHandler), Local: netip.MustParseAddr("192.0.2.1"), Port: 8472, TTL: 64})
		if err != nil {
			return err
		}
		defer u.Close()
		d := u.device.Load()
		done := make(chan struct{})
		go func() { u.lose(d, unix.EIO); close(done) }()
		_ = d.start(u.conn)
		<-done
		return nil
	})
}
