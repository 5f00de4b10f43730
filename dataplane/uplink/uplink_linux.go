package uplink

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/pace"
	"github.com/overlayd/overlayd/dataplane/rtmsg"
	"github.com/overlayd/overlayd/dataplane/watch"
	"github.com/overlayd/overlayd/encap"
)

// Config says which datagrams an Uplink sends.
type Config struct {
	Log   *slog.Logger
	Local netip.Addr // their source address
	Port  uint16     // their destination port
	TTL   uint8      // on the wire, whatever hop limit the route has: that of all datagrams
	DF    bool       // IPv4: Don't Fragment is set
	Mark  uint32     // packet mark, for the host's rules about outgoing packets; 0: none
	// Inherited is the file of another process's uplink, or nil. Open uses its device if it can, and closes the file.
	Inherited *os.File
	// Always also takes superpackets for links that cannot carry them whole; the kernel then splits them.
	Always bool
}

// loss is a device that refused a frame, or whose rules could not be changed.
type loss struct {
	why   error
	index int
}

// Uplink takes superpackets of one family. Refresh and the Writers may be used at the same time.
type Uplink struct {
	cfg  Config
	conn *rtmsg.Conn
	xfrm policies
	features
	watch  *watch.Subscription
	device atomic.Pointer[device] // nil: no device works

	lost atomic.Pointer[loss] // the device that was given up; nil: none

	mu         sync.Mutex // of all below
	closed     bool
	why        error // why no superpacket is taken; nil: they are
	generation uint64
	looked     time.Time
	ways       map[netip.Addr]*way
	hops       map[hop]*neighbour // of the ways
	news       bool               // some have news
	again      time.Time          // when to ask again for routes by silent ones
	pause      pace.Backoff
	made       time.Time // when the device was made
	retry      time.Time // when to make a device again, at the earliest
	notices    pace.Notices
	changes    []dataplane.Change
}

const (
	lookPeriod = 400 * time.Millisecond // between two looks at the device
	wayKept    = time.Minute            // how long a destination is kept that nobody asks for
	pauseOver  = 2 * time.Minute        // a device that has worked this long is made again without a pause
)

var (
	errClosed = errors.New("the uplink is closed")
	errIPsec  = errors.New("this host has IPsec policies, which do not see what goes by the uplink")
)

// Open makes the TAP device and its table in the network namespace of the calling thread. An error says what this
// host lacks: Linux 6.17, nft_fwd_netdev, CAP_NET_ADMIN or /dev/net/tun.
func Open(cfg Config) (*Uplink, error) {
	u := &Uplink{cfg: cfg, xfrm: policies{-1}, features: openFeatures(), ways: map[netip.Addr]*way{}, hops: map[hop]*neighbour{}, generation: 1,
		pause: pace.Backoff{Low: lookPeriod, High: time.Minute}}
	if err := u.open(); err != nil {
		u.cfg.Inherited.Close() // nil has nothing to close
		u.Close()
		return nil, fmt.Errorf("open uplink: %w", err)
	}
	return u, nil
}

func (u *Uplink) open() (err error) {
	if u.xfrm, err = openPolicies(); err != nil {
		return err
	}
	if u.conn, err = rtmsg.Open(); err != nil {
		return err
	}
	if u.watch, err = watch.Open(watch.Groups{Protocol: unix.NETLINK_ROUTE, Must: []int{unix.RTNLGRP_LINK},
		May: []int{unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV6_RULE, unix.RTNLGRP_NEXTHOP, unix.RTNLGRP_NEIGH}}); err != nil {
		return err
	}
	d, err := openDevice(u.conn, u.cfg)
	u.cfg.Inherited = nil // it is closed
	if err != nil {
		return err
	}
	u.device.Store(d)
	return u.try()
}

// try writes a superpacket to no destination, because a kernel may accept the settings and still lack the feature.
func (u *Uplink) try() error {
	const payload, size = 3000, 1000
	d := u.device.Load()
	w := u.newWay(d, netip.Addr{}, 0)
	b := make([]byte, Headroom+encap.HeaderLen+20+20+payload)
	encap.PutVXLAN(b[Headroom:], 0)
	ip := b[Headroom+encap.HeaderLen:]
	encap.PutEthernet(b[Headroom+encap.VXLANLen:], encap.MAC{}, encap.MAC{}, encap.EtherTypeIPv4)
	ip[0], ip[2], ip[3], ip[9], ip[20+12] = 0x45, byte(len(ip)>>8), byte(len(ip)&0xff), encap.ProtoTCP, 5<<4
	start := w.Put(b, Headroom, &Frame{GSO: encap.GSOTCPv4, Size: size, CsumStart: 20, HeaderLen: 40})
	if errno := u.NewWriter().Write(w, b[start:]); errno != 0 {
		return fmt.Errorf("write to %s: %w", d.name, errno) // by now there may be no device any more
	}
	return nil
}

// Close removes what Open made; the device may be there for some milliseconds more. It may be called more than once; Writers get ENODEV.
func (u *Uplink) Close() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closed {
		return
	}
	u.closed, u.why = true, errClosed
	if d := u.device.Swap(nil); d != nil {
		d.close()
	}
	if u.watch != nil {
		u.watch.Close()
	}
	if u.conn != nil {
		u.conn.Close()
	}
	u.xfrm.close()
	u.features.close()
}

// lose gives up a device that refuses frames.
func (u *Uplink) lose(d *device, errno unix.Errno) {
	if u.device.CompareAndSwap(d, nil) {
		u.lost.Store(&loss{error(errno), d.index})
		d.close() // the kernel waits for a write that is under way; nobody else uses the device
	}
}

// File returns the file of the device, for Config.Inherited of another process. It returns nil if no device works.
func (u *Uplink) File() *os.File {
	if d := u.device.Load(); d != nil {
		return d.file
	}
	return nil
}

// InUse returns why no superpackets are taken now; nil: they are.
func (u *Uplink) InUse() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.why
}

// Destination is a destination of superpackets.
type Destination struct {
	Addr netip.Addr
	// Sockets says that the peer receives by UDP sockets. The kernel marks segments that it has cut as a tunnel's. Between two hosts of one machine the mark
	// stays, and the other kernel then joins none of them for a socket. So such a peer has a way only if the link takes superpackets whole.
	Sockets bool
	Set     func(*Way) // is called with the way, or nil for none, if that has changed; Set is never nil
	Have    *Way       // the way of the last call
}

// Refresh checks the device and the routes, and calls Set of each destination whose way has changed. It is called twice a second, and
// every 20 ms while a probe is out. Networks that share a port call it in turn, each with its own destinations.
func (u *Uplink) Refresh(list []Destination) {
	u.mu.Lock()
	defer u.mu.Unlock()
	now := time.Now()
	u.look(now)
	if u.why != nil {
		for _, d := range list {
			if d.Have != nil {
				d.Set(nil)
			}
		}
		return
	}
	u.resolve(list, now)
	for _, d := range list {
		if w := u.ways[d.Addr]; w != nil && w.out != d.Have {
			d.Set(w.out)
		}
	}
	u.forget(now)
}

// Hurry makes the next Refresh look at once, and make a device again without a pause. It is for tests and bench/compare/copier.
func (u *Uplink) Hurry() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.looked, u.retry = time.Time{}, time.Time{}
}

// look finds out whether superpackets can be taken, at most once in a lookPeriod.
func (u *Uplink) look(now time.Time) {
	if u.closed || now.Sub(u.looked) < lookPeriod {
		return
	}
	u.looked = now
	u.listen()
	u.doubt(now)
	before := u.why
	u.why = u.keep(now)
	if any, err := u.xfrm.out(); u.why == nil && err != nil {
		u.why = err
	} else if u.why == nil && any {
		u.why = errIPsec
	}
	switch {
	case u.why != nil && (before == nil || before.Error() != u.why.Error()):
		if due, _ := u.notices.Due(now, pace.Notice{Key: "uplink", Text: u.why.Error()}); len(due) > 0 {
			u.cfg.Log.Warn("tunnel offload not used now: superpackets go by UDP sockets, in segments", "err", u.why, "fix", dataplane.FixOr(u.why, "nothing if it comes back by itself; --offload=socket does without"))
		}
	case u.why == nil && before != nil:
		u.cfg.Log.Info("tunnel offload used again")
	}
}

// keep makes sure that there is a working device.
func (u *Uplink) keep(now time.Time) error {
	d := u.device.Load()
	was := ""
	if d != nil {
		err := d.isThere(u.conn)
		if errors.Is(err, errDown) {
			if err := d.start(u.conn); err != nil {
				return err
			}
			u.repaired(dataplane.OpReplace, d.name, "down", "up")
			return nil
		}
		if err == nil {
			return nil
		}
		was = err.Error()
		if u.device.CompareAndSwap(d, nil) {
			if errors.Is(err, errRenamed) {
				u.lost.Store(&loss{err, d.index})
			}
			d.close()
		}
	}
	lost := u.lost.Load()
	if lost != nil {
		was = lost.why.Error()
	}
	if now.Before(u.retry) {
		return errors.New("the uplink is to be made again: " + was)
	}
	if now.Sub(u.made) > pauseOver {
		u.pause.Reset()
	}
	u.retry = now.Add(u.pause.Next())
	if lost != nil {
		deleteLink(u.conn, lost.index) // a service manager may have its file open
	}
	d, err := openDevice(u.conn, u.cfg)
	if err != nil {
		return fmt.Errorf("make uplink again: %w", err)
	}
	clear(u.ways) // the new table has no hops
	u.made = now
	u.device.Store(d)
	u.lost.Store(nil)
	u.repaired(dataplane.OpReplace, d.name, was, "made again")
	return nil
}

func (u *Uplink) repaired(op dataplane.Op, key, was, is string) {
	u.changes = append(u.changes, dataplane.Change{Op: op, Kind: kindDevice, Key: key, Was: was, Is: is})
}

// The kinds of objects.
const (
	kindDevice = "uplink"
	kindWay    = "uplink next hop"
)

// Objects counts the objects of the Uplink, and returns the repairs since the last call.
func (u *Uplink) Objects() (objects []dataplane.ObjectStatus, repaired []dataplane.Change) {
	u.mu.Lock()
	defer u.mu.Unlock()
	device, ways := dataplane.ObjectStatus{Kind: kindDevice, Wanted: 1}, dataplane.ObjectStatus{Kind: kindWay, Wanted: len(u.ways)}
	if u.why == nil {
		device.Have = 1
		for _, w := range u.ways {
			if w.out != nil {
				ways.Have++
			}
		}
	}
	repaired, u.changes = u.changes, nil
	return []dataplane.ObjectStatus{device, ways}, repaired
}
