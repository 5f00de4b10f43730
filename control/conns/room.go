package conns

import (
	"context"
	"net/netip"
	"os"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Crowded is what an embedded etcd says to a connection from an address that has all that one may have.
const Crowded = "too many connections from this address"

// crowd is how many connections to one store other users of a host have when they keep others out: an embedded etcd takes 512 from one address.
const crowd = 128

// crowdAgain is how many seconds pass until it is logged again.
const crowdAgain = 60

// MakeRoom ends the connections of other users to a store if they have a crowd of them (SOCK_DESTROY, for which CAP_NET_ADMIN is
// enough). It is for a store that has refused a connection of this process as Crowded. Programs that mean well connect again.
func (d *Dialer) MakeRoom(ctx context.Context, store netip.AddrPort) {
	store = netip.AddrPortFrom(store.Addr().Unmap(), store.Port())
	var others []*netlink.Socket
	for _, family := range [...]uint8{unix.AF_INET, unix.AF_INET6} {
		all, err := netlink.SocketDiagTCP(family)
		if err != nil {
			d.Log.DebugContext(ctx, "sockets not listed: connections of others stay", "err", err)
			return
		}
		for _, s := range all {
			to, _ := netip.AddrFromSlice(s.ID.Destination)
			if to.Unmap() == store.Addr() && s.ID.DestinationPort == store.Port() && int(s.UID) != os.Geteuid() && s.UID != 0 {
				others = append(others, s)
			}
		}
	}
	if len(others) < crowd {
		return
	}
	ended := 0
	for _, s := range others {
		from, _ := netip.AddrFromSlice(s.ID.Source)
		if destroy(netip.AddrPortFrom(from, s.ID.SourcePort), store, s.ID.Cookie) == nil {
			ended++
		}
	}
	if now, last := time.Now().Unix(), d.crowded.Load(); now-last >= crowdAgain && d.crowded.CompareAndSwap(last, now) {
		d.Log.WarnContext(ctx, "the embedded etcd takes no more connections from this host, where another user has them: ended", "user", others[0].UID, "connections", len(others), "ended", ended,
			"fix", "end the programs that connect to the store, which ss -Htnp names")
	}
}
