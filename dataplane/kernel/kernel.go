package kernel

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/rtmsg"
	"github.com/overlayd/overlayd/dataplane/rtnl"
	"github.com/overlayd/overlayd/dataplane/watch"
)

// defaultResync is how often the kernel is compared with what is wanted when
// nothing has been noticed. Calico's felix does it every 90 s, antrea every 60 s.
const defaultResync = 60 * time.Second

// Config configures the kernel dataplane. All fields of the first group must be set.
type Config struct {
	Log       *slog.Logger
	Underlays []dataplane.Underlay // one or two, of different families; each gets a device
	VNI       uint32               // 24-bit; at most dataplane.MaxDeviceVNI, over IPv6 MaxDeviceVNIV6
	Port      uint16               // UDP port of VXLAN
	MTU       int                  // of the overlay devices, in bytes

	Later    bool          // bring devices up in the first Sync, which needs the UDP port; TUN devices stay until TakePlace
	MayBeUp  func() bool   // whether the devices may carry packets now; nil: always. If not they are down, and Sync fails
	GBP      bool          // group based policy extension
	Learning bool          // learn forwarding entries from received packets
	Resync   time.Duration // between two comparisons with the kernel; 0 means a minute

	Deaf bool // notice no changes of others but by Resync, which is a few seconds then: for tests

	noNexthops bool // for tests: do as on a kernel before 5.3
}

func (c *Config) check() error {
	switch n := len(c.Underlays); {
	case n == 0 || n > 2 || n == 2 && c.Underlays[0].Local.Is4() == c.Underlays[1].Local.Is4():
		return fmt.Errorf("%d underlays are not one per address family", n)
	case c.Port == 0:
		return errors.New("port 0 is not a VXLAN port")
	case c.MTU <= 0:
		return fmt.Errorf("MTU %d is not positive", c.MTU)
	}
	for _, u := range c.Underlays {
		if err := c.checkUnderlay(u); err != nil {
			return err
		}
	}
	return nil
}

func (c *Config) checkUnderlay(u dataplane.Underlay) error {
	limit := uint32(dataplane.MaxDeviceVNI)
	if u.Local.Is6() {
		limit = dataplane.MaxDeviceVNIV6
	}
	switch {
	case u.Link <= 0:
		return fmt.Errorf("underlay link index %d is not positive", u.Link)
	case !u.Local.IsValid() || !u.Public.IsValid() || u.Local.BitLen() != u.Public.BitLen() || u.Local.Is4In6():
		return fmt.Errorf("local address %s and public address %s are not two of one family", u.Local, u.Public)
	case c.VNI > limit:
		return fmt.Errorf("VNI %d is too large for the name of device %s: at most %d", c.VNI, deviceName(u.Local, c.VNI), limit)
	}
	return nil
}

// Dataplane forwards packets by the kernel's vxlan devices. It implements
// dataplane.Dataplane.
type Dataplane struct {
	log    *slog.Logger
	resync time.Duration
	rt     *rtnl.Conn
	watch  *watch.Subscription

	// mu is held while the kernel is programmed.
	mu      sync.Mutex
	closed  bool
	tunnels []*tunnel // fixed by Open
	program *programmer
	report  *dataplane.Reporter
	faults  dataplane.Faults  // that Run has told of
	pending atomic.Bool       // something wanted could not be made: Run tries it again
	last    *dataplane.Wanted // of the last Sync
	retired []string          // names of devices that an earlier overlayd may have left: of a family that has gone
}

var _ dataplane.Dataplane = (*Dataplane)(nil)

// Open adopts or makes the overlay device of each underlay in the network namespace
// of the calling thread, tries what kernel mode needs, and brings the devices up. It
// changes no peer. Errors wrap [ErrUnsupported], [ErrPermission] or [ErrPortInUse] if that is
// the cause.
func Open(c Config) (*Dataplane, error) {
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("open kernel dataplane: %w", err)
	}
	d := &Dataplane{log: c.Log, resync: c.Resync, report: dataplane.NewReporter(c.Log, "kernel")}
	switch {
	case c.Deaf:
		d.resync = watch.DeafResync
		d.report.Polls(d.resync)
	case d.resync == 0:
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
	if d.watch, err = watch.Open(watchGroups(c.Deaf)); err != nil {
		return err
	}
	batch, err := rtmsg.Open()
	if err != nil {
		return err
	}
	for _, u := range c.Underlays {
		t := &tunnel{Underlay: u, log: c.Log, cfg: c, rt: d.rt, batch: batch, mac: u.MAC}
		d.tunnels = append(d.tunnels, t)
	}
	d.program = &programmer{log: c.Log, report: d.report, cfg: c, batch: batch, tunnels: d.tunnels, nexthops: true}
	for _, name := range deviceNames(c.VNI) {
		if !slices.ContainsFunc(d.tunnels, func(t *tunnel) bool { return deviceName(t.Local, c.VNI) == name }) {
			d.retired = append(d.retired, name)
		}
	}
	for _, t := range d.tunnels {
		if err := t.openDevice(); err != nil {
			return err
		}
		if err := t.stats.Start(d.rt, t.index); err != nil {
			return err
		}
	}
	return nil
}

// Close releases the sockets. Device, routes and entries stay, so that traffic goes on. A device that this
// process made goes if no Sync came, and it is not in its place or not up. Run closes at its end; Close may be
// called more than once.
func (d *Dataplane) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	for _, t := range d.tunnels {
		t.stats.Stop(d.rt, int(t.watched.Load()))
		t.abandon()
	}
	if d.program != nil {
		d.program.batch.Close()
	}
	if d.watch != nil {
		d.watch.Close()
	}
	if d.rt != nil {
		d.rt.Close()
	}
	return nil
}

var errClosed = errors.New("kernel dataplane is closed")

// VTEPs returns the VTEPs to publish. The MAC is that of the last Sync, else that of the config, of an
// adopted device, or derived from the published address.
func (d *Dataplane) VTEPs() []dataplane.VTEP {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []dataplane.VTEP
	for _, t := range d.tunnels {
		out = append(out, dataplane.VTEP{Addr: t.Public, MAC: t.mac, VNI: t.cfg.VNI})
	}
	return out
}

// Sync makes exactly w true: see the package's comment. The second and later calls compare w
// with the remembered state, and read the kernel's state again only if the kernel refuses
// something that it did not refuse before. After Run it fails.
func (d *Dataplane) Sync(ctx context.Context, w dataplane.Wanted) (dataplane.Wanted, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return w, errClosed
	}
	d.last = &w
	err := d.sync(ctx, w, true)
	d.faults.Know(err)
	return w, err
}

// TakePlace puts devices that were opened with Config.Later in the place of the TUN device, which goes. They
// forward since Sync, which must come first.
func (d *Dataplane) TakePlace(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || d.last == nil {
		return errClosed
	}
	d.program.cfg.Later = false
	return d.sync(ctx, *d.last, true)
}

// Prune implements dataplane.Part. Sync has removed what w does not want: no later part relies
// on it, and a subnet that moves between peers or devices must be moved in one go.
func (d *Dataplane) Prune(context.Context, dataplane.Wanted) error { return nil }

// Status implements dataplane.Part.
func (d *Dataplane) Status() dataplane.PartStatus { return d.report.Status() }

// sync is Sync for callers that hold mu; asked is false for a repair.
func (d *Dataplane) sync(ctx context.Context, w dataplane.Wanted, asked bool) error {
	want, refused, err := d.program.sync(ctx, w, asked)
	d.pending.Store(err != nil || len(d.program.failed) > 0)
	err = d.refusals(w, refused, err)
	if ctx.Err() == nil {
		d.report.Publish(dataplane.StateOf(err), err, d.program.objects(want)...)
		d.report.Repaired(d.program.repairs...)
	}
	d.program.repairs = nil
	if left := d.program.held; left > 0 {
		d.program.have = nil // what is made then is a repair
		d.pending.Store(true)
		time.AfterFunc(left, d.watch.Wake)
	}
	return err
}

// refusals joins what became of the single peers with err, which concerns all of them.
func (d *Dataplane) refusals(w dataplane.Wanted, refused refusals, err error) error {
	errs := []error{err}
	for i, p := range w.Peers {
		err := refused[i]
		if !d.carries(p) {
			err = fmt.Errorf("this host has no tunnel of the family of %s", p.Addr)
		}
		if err != nil {
			errs = append(errs, &dataplane.PeerError{Peer: p, Err: err})
		}
	}
	if err == nil {
		errs = append(errs, d.retire())
	}
	return errors.Join(errs...)
}

// retire removes our devices of a family that has gone from the config, once
// nothing leads to them any more.
func (d *Dataplane) retire() error {
	for _, name := range d.retired {
		removed, err := d.rt.RemoveOurs(name)
		if err != nil {
			return err
		}
		if removed {
			d.log.Info("removed the device of an address family that the underlay no longer has", "device", name)
		}
	}
	d.retired = nil
	return nil
}

func (d *Dataplane) carries(p dataplane.Peer) bool {
	for _, t := range d.tunnels {
		if t.Local.Is4() == p.Addr.Is4() {
			return true
		}
	}
	return false
}
