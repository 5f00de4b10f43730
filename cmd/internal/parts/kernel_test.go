package parts

import (
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/overlayd/overlayd/cmd/internal/fit"
	"github.com/overlayd/overlayd/cmd/internal/handover"
	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/carrier"
	"github.com/overlayd/overlayd/dataplane/inherit"
	"github.com/overlayd/overlayd/dataplane/netnstest"
	"github.com/overlayd/overlayd/dataplane/underlay"
)

// onEth0 returns the parts of 10.5.0.0/16 on the underlay 192.0.2.2 of a namespace.
func onEth0(ns *netnstest.NS, log *netnstest.Log) (l *List) {
	ns.Must(func() error {
		config, err := control.ParseNetwork([]byte(`{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}`))
		if err != nil {
			return err
		}
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		local := underlay.End{Local: netip.MustParseAddr("192.0.2.2"), Public: netip.MustParseAddr("192.0.2.2")}
		l = &List{Config: Config{
			Log: slog.New(slog.NewTextHandler(log, nil)), Network: config, Inherited: &handover.Inheritance{Estate: new(handover.Estate)},
			Underlay: underlay.Interface{Name: "eth0", Index: link.Attrs().Index, MTU: 1500, IPv4: local},
		}}
		l.Inherited.Estate.Log = l.Log
		return nil
	})
	return l
}

// TestHandOverFails: what the kernel could not take over is not logged as handed over.
func TestHandOverFails(t *testing.T) {
	t.Parallel()
	ns := netnstest.New(t)
	netnstest.LAN(t, "192.0.2.0/24", ns)
	var log netnstest.Log
	l := onEth0(ns, &log)
	ns.Must(func() error {
		k, err := l.OpenBeside(1450, nil)
		if err != nil {
			return err
		}
		if err := k.Close(); err != nil {
			return err
		}
		if err := l.HandOver(k, &dataplane.Wanted{MTU: 1450}); err == nil || log.Count("handed over") > 0 {
			t.Errorf("handed over with %v, logged:\n%s", err, log.String())
		}
		return nil
	})
}

// TestInheritedBesideKernel: in auto mode what was handed over is kept for the userspace dataplane if the kernel has
// no vxlan, and closed, which is said, if it has.
func TestInheritedBesideKernel(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		mode  fit.Mode
		vxlan bool
		kept  bool
	}{{fit.Auto, false, true}, {fit.Auto, true, false}, {fit.Kernel, false, false}} {
		t.Run(fmt.Sprint(c.mode, c.vxlan), func(t *testing.T) {
			ns := netnstest.New(t)
			netnstest.LAN(t, "192.0.2.0/24", ns)
			if !c.vxlan { // the device that kernel.Available tries is there
				ns.Run("ip", "link", "add", "taken", "type", "vxlan", "id", fmt.Sprint(dataplane.MaxDeviceVNI), "dstport", "65535", "dev", "lo", "local", "127.0.0.1")
			}
			var log netnstest.Log
			l := onEth0(ns, &log)
			l.Mode = c.mode
			in, out, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer out.Close()
			defer in.Close()
			l.Inherited.Estate.Add([]carrier.Export{{Name: "udp pipe", File: in}})
			ns.Must(func() error {
				k, err := l.openKernel(1450)
				if err == nil {
					k.Close()
				}
				if kept := l.Inherited.Estate.Has(inherit.IsTraffic); kept != c.kept || kept != (err != nil) {
					t.Errorf("kept %v, %v", kept, err)
				}
				return nil
			})
			if said := log.Count("packets are lost"); said == 1 == c.kept {
				t.Errorf("log:\n%s", log.String())
			}
		})
	}
}
