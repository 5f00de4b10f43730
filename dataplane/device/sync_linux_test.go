package device

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/netnstest"
	"github.com/overlayd/overlayd/dataplane/rtnl"
	"github.com/overlayd/overlayd/dataplane/tun"
)

// TestSyncTakesBack: what others do to the device so that it carries no packets is undone by the next Sync, which tells of it.
func TestSyncTakesBack(t *testing.T) {
	for _, mode := range []tun.Mode{{}, {Vnet: true, Multi: true}} {
		for _, change := range []string{"carrier off", "txqueuelen 0", "down"} {
			t.Run(fmt.Sprintf("%+v/%s", mode, change), func(t *testing.T) {
				n := netnstest.New(t)
				w := dataplane.Wanted{MTU: 1400, Subnets: []netip.Prefix{netip.MustParsePrefix("10.5.1.0/24")}, Networks: []netip.Prefix{netip.MustParsePrefix("10.5.0.0/16")}}
				n.Must(func() error {
					d, err := Open(Config{Log: slog.New(slog.DiscardHandler), VNI: 1, Mode: mode})
					if err != nil {
						return err
					}
					defer d.Close()
					fd, err := tun.Attach(d.Name(), d.Mode())
					if err != nil {
						return err
					}
					defer unix.Close(fd)
					if _, _, err := d.Sync(w); err != nil {
						return err
					}
					n.Run("sh", "-c", "ip link set flannel.1 "+change)
					_, changes, err := d.Sync(w)
					l, e := d.conn.LinkByIndex(d.index)
					if err := errors.Join(err, e); err != nil {
						return err
					}
					if a := l.Attrs(); !rtnl.HasCarrier(l) || a.TxQLen < 500 || len(changes) == 0 || changes[0].Key != "flannel.1" {
						t.Errorf("device is %+v after %v", a, changes)
					}
					if _, changes, err = d.Sync(w); len(changes) > 0 {
						t.Errorf("again %v", changes)
					}
					return err
				})
			})
		}
	}
}
