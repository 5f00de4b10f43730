package rtnl

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/rtmsg"
)

// ErrNotFound means that there is no such link.
var ErrNotFound = errors.New("no such link")

// dumpTries bounds how often an interrupted dump is repeated. A dump of a few
// links or addresses takes microseconds; ten in a row are not interrupted by chance.
const dumpTries = 10

// Conn is one netlink connection to one network namespace. Its methods may be
// called from several goroutines.
type Conn struct {
	// OnChange, if not nil, gets each change that SetLink, SetAddrs, AddAddrs and SetRoutes try to make:
	// just before the try, and an added route just after it. It is set before these are called.
	OnChange func(dataplane.Change)
	// NoLiveRename is for tests: Rename does as on a kernel before 6.2. It is set before Rename is called.
	NoLiveRename bool

	h       *netlink.Handle
	raw     *nl.SocketHandle // for requests that the library does not support
	changes atomic.Uint64

	batching sync.Mutex // of batch
	batch    *rtmsg.Conn
}

// Open connects to the network namespace of the calling thread.
func Open() (*Conn, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	s, err := nl.Subscribe(unix.NETLINK_ROUTE)
	if err != nil {
		h.Close()
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	// Old kernels do not have it: they send all routes, and ours are found among them.
	_ = unix.SetsockoptInt(s.GetFd(), unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1)
	batch, err := rtmsg.Open()
	if err != nil {
		h.Close()
		s.Close()
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	return &Conn{h: h, raw: &nl.SocketHandle{Socket: s}, batch: batch}, nil
}

// Close ends the connection; what it made stays.
func (c *Conn) Close() {
	c.h.Close()
	c.raw.Close()
	c.batch.Close()
}

// Handle returns the connection for steps that only one caller needs.
func (c *Conn) Handle() *netlink.Handle { return c.h }

// Changes returns how many changes SetLink, SetAddrs, AddAddrs and SetRoutes have made: if it stays the same, all was as wanted, or the
// kernel refused it.
func (c *Conn) Changes() uint64 { return c.changes.Load() }

// changed counts a change and reports it.
func (c *Conn) changed(op dataplane.Op, kind, key, was, is string) {
	c.changes.Add(1)
	if c.OnChange != nil {
		c.OnChange(dataplane.Change{Op: op, Kind: kind, Key: key, Was: was, Is: is})
	}
}

// The kinds of objects in a Change.
const (
	KindDevice  = dataplane.KindDevice
	KindAddress = "address"
	KindRoute   = "route"
)

// Retry runs a dump again while the kernel reports that something changed
// under it (NLM_F_DUMP_INTR): its result would have holes or repetitions.
func Retry[T any](dump func() (T, error)) (T, error) {
	for range dumpTries - 1 {
		v, err := dump()
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			return v, err
		}
	}
	return dump()
}
