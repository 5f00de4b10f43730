package device

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/netnstest"
	"github.com/overlayd/overlayd/dataplane/tun"
)

// TestNoticesConcernTheDevice: whether the device is made or its queues are inherited, a notification about it matters,
// and one about another device does not.
func TestNoticesConcernTheDevice(t *testing.T) {
	for name, attached := range map[string]*tun.Mode{"made": nil, "inherited": {}} {
		t.Run(name, func(t *testing.T) {
			netnstest.New(t).Must(func() error {
				if attached != nil {
					if err := tun.Make(dataplane.DeviceName(1), *attached, true); err != nil {
						return err
					}
				}
				d, err := Open(Config{Log: slog.New(slog.DiscardHandler), VNI: 1, Attached: attached})
				if err != nil {
					return err
				}
				defer d.Close()
				for index, want := range map[int]bool{d.index: true, d.index + 1: false} {
					link := make([]byte, unix.SizeofIfInfomsg)
					binary.NativeEndian.PutUint32(link[4:], uint32(index)) // struct ifinfomsg in linux/rtnetlink.h
					if got := d.routes.concerns(unix.NlMsghdr{Type: unix.RTM_NEWLINK}, link); got != want {
						t.Errorf("link %d of device %d: %t", index, d.index, got)
					}
				}
				return nil
			})
		})
	}
}

// TestBusyForAMoment: a device that another process still has open, for a moment, is waited for.
func TestBusyForAMoment(t *testing.T) {
	for _, persist := range []bool{true, false} {
		for _, mode := range []tun.Mode{{}, {Vnet: true, Multi: true}} {
			t.Run(fmt.Sprintf("persist=%t/mode=%+v", persist, mode), func(t *testing.T) {
				netnstest.New(t).Must(func() error {
					if persist {
						if err := tun.Make(dataplane.DeviceName(1), mode, true); err != nil {
							return err
						}
					}
					fd, err := tun.Attach(dataplane.DeviceName(1), mode)
					if err != nil {
						return err
					}
					closed := make(chan error)
					time.AfterFunc(busyPatience/10, func() { closed <- unix.Close(fd) })
					d, err := Open(Config{Log: slog.New(slog.DiscardHandler), VNI: 1, Mode: mode})
					if err := errors.Join(err, <-closed); err != nil {
						return err
					}
					d.Close()
					return nil
				})
			})
		}
	}
}

// TestSettleAgain: a device that could not get its name tries again, as it has a predecessor until then.
func TestSettleAgain(t *testing.T) {
	for _, old := range []bool{false, true} {
		t.Run(fmt.Sprintf("kernel before 6.2=%t", old), func(t *testing.T) {
			n := netnstest.New(t)
			n.Run("ip", "link", "add", "flannel.1", "type", "vxlan", "id", "1", "dstport", "8472")
			n.Must(func() error {
				d, err := Open(Config{Log: slog.New(slog.DiscardHandler), VNI: 1})
				if err != nil {
					return err
				}
				defer d.Close()
				d.conn.NoLiveRename = old
				if err := d.Up(1400); err != nil {
					return err
				}
				n.Run("ip", "link", "del", "flannel.1")
				n.Run("ip", "link", "add", "flannel.1", "type", "bridge")
				if err := d.Settle(nil); err == nil || len(d.Predecessors()) != 1 {
					t.Errorf("got %v, predecessors %v", err, d.Predecessors())
				}
				n.Run("ip", "link", "del", "flannel.1")
				if err := d.Settle(nil); err != nil || len(d.Predecessors()) != 0 || d.Name() != "flannel.1" {
					t.Errorf("got %v, predecessors %v, device %s", err, d.Predecessors(), d.Name())
				}
				return nil
			})
		})
	}
}
