package uplink

import (
	"context"
	"encoding/binary"
	"errors"
	"maps"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/rtmsg"
)

var errSilent = errors.New("its next hop has not answered yet")

// askPeriod is the time between two questions for the route to a destination whose next hop is silent, at least. The kernel then
// chooses another router for a socket, and tells nobody.
const askPeriod = 2 * time.Second

// hop is a next hop: a neighbour on a link.
type hop struct {
	link int
	addr netip.Addr
}

// hop returns the next hop of a route to a destination.
func (r route) hop(to netip.Addr) hop {
	if r.gateway.IsValid() {
		to = r.gateway
	}
	return hop{r.link, to}
}

// neighbour is what the kernel says of a next hop in use.
type neighbour struct {
	silent bool // the kernel asks for its link-layer address, or has given up
	news   bool // silent has changed
}

const (
	sizeofNdMsg = 12
	// An address that is asked for again (NUD_PROBE) answers in less than a look takes, or not at all. Frames that follow keep the
	// kernel from giving up a dead IPv6 router.
	silentStates = unix.NUD_INCOMPLETE | unix.NUD_PROBE | unix.NUD_FAILED
)

// listen reads what has changed since the last call.
func (u *Uplink) listen() {
	routes := false
	lost := u.watch.Drain(func(h unix.NlMsghdr, body []byte) {
		if h.Type == unix.RTM_NEWNEIGH || h.Type == unix.RTM_DELNEIGH {
			u.hear(h.Type, body)
		} else {
			routes = true
		}
	})
	if lost {
		clear(u.hops)
	}
	if lost || routes {
		u.generation++
	}
}

// hear reads the body of RTM_NEWNEIGH or RTM_DELNEIGH. A link may have thousands of neighbours: those that are no next hop cost no more than this.
func (u *Uplink) hear(typ uint16, body []byte) {
	h, attrs := rtmsg.Split(body, sizeofNdMsg)
	if h == nil || h[0] != rtmsg.Family(u.cfg.Local) {
		return
	}
	for a, v := range rtmsg.Attrs(attrs) {
		if a != unix.NDA_DST {
			continue
		}
		addr, _ := netip.AddrFromSlice(v)
		n := u.hops[hop{int(binary.NativeEndian.Uint32(h[4:])), addr}]
		if silent := typ == unix.RTM_NEWNEIGH && isSilent(h); n != nil && n.silent != silent {
			n.silent, n.news = silent, !n.news
			u.news = true
		}
	}
}

func isSilent(ndmsg []byte) bool { return binary.NativeEndian.Uint16(ndmsg[8:])&silentStates != 0 }

// doubt has the routes asked for again that go by a neighbour of which there is news, and now and then those by a silent one.
func (u *Uplink) doubt(now time.Time) {
	due := !now.Before(u.again)
	if !due && !u.news {
		return
	}
	if due {
		u.again = now.Add(askPeriod)
	}
	for to, w := range u.ways {
		if n := u.hops[w.hop(to)]; n != nil && (n.news || due && n.silent) {
			w.generation = 0
		}
	}
	for _, n := range u.hops {
		n.news = false
	}
	u.news = false
}

// meet asks the kernel for the next hops of routes that it has not asked for yet.
func (u *Uplink) meet(to []netip.Addr, routes []route, errs []error) error {
	var ask []hop
	for i := range to {
		at := routes[i].hop(to[i])
		if errs[i] == nil && u.hops[at] == nil {
			u.hops[at] = &neighbour{}
			ask = append(ask, at)
		}
	}
	err := u.conn.Transact(context.Background(), len(ask), func(i int, b []byte) []byte {
		family := make([]byte, sizeofNdMsg)
		family[0] = rtmsg.Family(ask[i].addr)
		binary.NativeEndian.PutUint32(family[4:], uint32(ask[i].link))
		start := len(b)
		return rtmsg.Finish(rtmsg.AttrAddr(rtmsg.Begin(b, unix.RTM_GETNEIGH, 0, family), unix.NDA_DST, ask[i].addr), start)
	}, func(i int, reply []byte, err error) {
		if h, _ := rtmsg.Split(reply, sizeofNdMsg); err == nil && h != nil { // else there is no such neighbour yet
			u.hops[ask[i]].silent = isSilent(h)
		}
	})
	if err != nil {
		for _, at := range ask {
			delete(u.hops, at)
		}
	}
	return err
}

// part forgets the neighbours that are no next hops any more.
func (u *Uplink) part() {
	used := map[hop]bool{}
	for to, w := range u.ways {
		used[w.hop(to)] = true
	}
	maps.DeleteFunc(u.hops, func(at hop, _ *neighbour) bool { return !used[at] })
}
