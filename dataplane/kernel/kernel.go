package kernel

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/rtnl"
)

// defaultResync is how often the kernel is compared with what is wanted when
// nothing has been noticed. Calico's felix does it every 90 s, antrea every 60 s.
const defaultResync = 60 * time.Second

// Config says what the kernel dataplane works with. All fields of the first
// group must be set.
type Config struct {
	Log    *slog.Logger
	Link   int        // interface index of the underlay link
	Local  netip.Addr // the underlay link's address: source of outer packets, and the family of the overlay
	Public netip.Addr // published address; other than Local behind NAT
	VNI    uint32     // 24-bit, and short enough for the device name: at most 9999999
	Port   uint16     // UDP port of VXLAN
	MTU    int        // of the overlay device, in bytes

	GBP      bool          // group based policy extension
	Learning bool          // learn forwarding entries from received packets
	Resync   time.Duration // between two comparisons with the kernel; 0 means a minute

	noNexthops bool // for tests: do as on a kernel before 5.3
}

func (c *Config) check() error {
	switch {
	case c.Link <= 0:
		return fmt.Errorf("underlay link index %d is not positive", c.Link)
	case !c.Local.IsValid() || !c.Public.IsValid() || c.Local.Is4() != c.Public.Is4():
		return fmt.Errorf("local address %s and public address %s are not two of one family", c.Local, c.Public)
	case len(deviceName(c.Local, c.VNI)) > maxName:
		return fmt.Errorf("VNI %d is too large: the name of device %s is longer than the kernel's %d bytes",
			c.VNI, deviceName(c.Local, c.VNI), maxName)
	case c.Port == 0:
		return errors.New("port 0 is no VXLAN port")
	case c.MTU <= 0:
		return fmt.Errorf("MTU %d is not positive", c.MTU)
	}
	return nil
}

// Dataplane forwards packets by the kernel's vxlan device. It implements
// dataplane.Dataplane.
type Dataplane struct {
	log    *slog.Logger
	name   string // of the device that Stats reads
	resync time.Duration
	rt     *rtnl.Conn
	watch  *conn

	// mu is held by whoever programs the kernel, for as long as that takes.
	mu      sync.Mutex
	closed  bool
	tunnels []*tunnel
	last    *dataplane.Wanted // what was last asked for

	stats meter
}

var _ dataplane.Dataplane = (*Dataplane)(nil)

// Open adopts or makes the overlay device in the network namespace of the
// calling thread, tries what kernel mode needs, and brings the device up. It
// changes no peer. Errors wrap [ErrUnsupported], [ErrPermission] or
// [ErrPortInUse] where these are the cause.
func Open(c Config) (*Dataplane, error) {
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("open kernel dataplane: %w", err)
	}
	d := &Dataplane{log: c.Log, resync: c.Resync}
	if d.resync == 0 {
		d.resync = defaultResync
	}
	if err := d.open(&c); err != nil {
		d.Close()
		return nil, fmt.Errorf("open kernel dataplane: %w", err)
	}
	return d, nil
}

func (d *Dataplane) open(c *Config) (err error) {
	if d.rt, err = rtnl.Open(); err != nil {
		return err
	}
	// Subscribed before anything is read, so that no later change goes unseen.
	if d.watch, err = openConn(watchGroups()...); err != nil {
		return err
	}
	batch, err := openConn()
	if err != nil {
		return err
	}
	t := &tunnel{log: c.Log, cfg: c, rt: d.rt, batch: batch, name: deviceName(c.Local, c.VNI)}
	d.tunnels = append(d.tunnels, t)
	d.name = t.name
	if err := t.openDevice(); err != nil {
		return err
	}
	return d.stats.start(d.rt, t.index)
}

// Close releases the sockets. Device, routes and entries stay, so that traffic
// goes on. Run does it at its end; it may be called more than once.
func (d *Dataplane) Close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stats.stop()
	d.closed = true
	for _, t := range d.tunnels {
		t.batch.close()
	}
	if d.watch != nil {
		d.watch.close()
	}
	if d.rt != nil {
		d.rt.Close()
	}
}

var errClosed = errors.New("kernel dataplane is closed")

// VTEPs returns what to publish. The MAC is an adopted device's own, or derived
// from the published address.
func (d *Dataplane) VTEPs() []dataplane.VTEP {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []dataplane.VTEP
	for _, t := range d.tunnels {
		out = append(out, dataplane.VTEP{Addr: t.cfg.Public, MAC: t.mac, VNI: t.cfg.VNI})
	}
	return out
}

// Sync makes exactly w true: see the package's comment. The second and later
// calls compare w with what is remembered, and read the kernel's state again
// only where something is refused that was not refused before. After Run it fails.
func (d *Dataplane) Sync(ctx context.Context, w dataplane.Wanted) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return errClosed
	}
	d.last = &w
	return d.sync(ctx, w)
}

// sync is Sync for who holds mu.
func (d *Dataplane) sync(ctx context.Context, w dataplane.Wanted) error {
	var errs []error
	failed := refusals{}
	for _, t := range d.tunnels {
		refused, err := t.sync(ctx, w)
		errs = append(errs, err)
		for i, e := range refused {
			failed.add(i, e)
		}
	}
	for i, p := range w.Peers {
		if !d.carries(p) {
			failed.add(i, fmt.Errorf("this host has no tunnel of the family of %s", p.Addr))
		}
		if err := failed[i]; err != nil {
			errs = append(errs, &dataplane.PeerError{Peer: p, Err: err})
		}
	}
	return errors.Join(errs...)
}

func (d *Dataplane) carries(p dataplane.Peer) bool {
	for _, t := range d.tunnels {
		if t.cfg.Local.Is4() == p.Addr.Is4() {
			return true
		}
	}
	return false
}
