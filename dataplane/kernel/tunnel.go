package kernel

import (
	"log/slog"
	"net/netip"
	"sync/atomic"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/rtmsg"
	"github.com/overlayd/overlayd/dataplane/rtnl"
	"github.com/overlayd/overlayd/encap"
)

// tunnel is the overlay device of one underlay family. The programmer programs what is on
// it. Its methods are called by one goroutine at a time.
type tunnel struct {
	dataplane.Underlay
	log   *slog.Logger
	cfg   *Config
	rt    *rtnl.Conn
	batch *rtmsg.Conn

	name    string // another one until it has taken the place of a TUN device
	index   int
	made    bool               // by this process
	synced  bool               // at least once
	watched atomic.Int64       // index, for the goroutine that reads notifications
	mac     encap.MAC          // that the device has, or gets by the next Sync
	changes []dataplane.Change // of the device, since they were last collected
	emptied bool               // the kernel may have removed what was on it
	stats   rtnl.Meter
}

// family is that of the underlay.
func (t *tunnel) family() uint8 { return rtmsg.Family(t.Local) }

func (t *tunnel) end() end { return end{t.Underlay, t.index, t.cfg.VNI} }

// own returns the overlay prefixes whose addresses the device has: those of its underlay's
// family, and of the other family if that has no underlay.
func (t *tunnel) own(ps []netip.Prefix) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range ps {
		if p.Addr().Is4() == t.Local.Is4() || len(t.cfg.Underlays) == 1 {
			out = append(out, p)
		}
	}
	return out
}
