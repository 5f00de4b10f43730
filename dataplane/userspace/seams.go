package userspace

import (
	"context"
	"net/netip"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/carrier"
	"github.com/overlayd/overlayd/encap"
)

// host is the side of this machine: a TUN device. It is used by the Dataplane that opened it.
type host interface {
	// queues returns its queues, always the same, one for each sendWorker.
	queues() []queue
	// sync makes the host as wanted, all it can even if it returns an error. It returns the
	// counts of what it keeps and what it changed.
	sync(w dataplane.Wanted) ([]dataplane.ObjectStatus, []dataplane.Change, error)
	// close releases what the host holds, after the queues were stopped. The device stays.
	close() error
}

// watcher is a host that notices some changes of others by itself.
type watcher interface {
	// watch calls changed after such a change: sync is needed. It returns nil when ctx ends, and an error of changed.
	watch(ctx context.Context, changed func() error) error
}

// newcomer is a host that may have been made by this process: then nobody has synced it before.
type newcomer interface{ isNew() bool }

// successor is a host that takes the place of devices which forward until the first Sync, so that
// they carry the traffic while the store is asked. Its methods are called in this order, each one
// again if it or a later one fails.
type successor interface {
	// predecessors returns the names of these devices: nothing once settle was successful.
	predecessors() []string
	// check returns why the host cannot take their place: its own device is gone, or others hold
	// the port of locals too.
	check(locals []netip.AddrPort) error
	// prepare has the host take packets of that MTU. It sends nothing yet.
	prepare(mtu int) error
	// stop stops the predecessors over an underlay of that family, so that they hold no port.
	stop(family int) error
	// settle removes those of its own network, which has these prefixes, and takes their place. The
	// host needs a sync afterwards.
	settle(networks []netip.Prefix) error
}

// queue is where the host hands out packets, used by one goroutine but for stop.
type queue interface {
	// Read waits for the next packet that the host sends, and makes all of it. Packets are
	// borrowed: before Read uses the bytes of any again, and before it waits, it calls flush,
	// so that what was put off for more packets to come is done then. It ends with
	// os.ErrDeadlineExceeded after stop.
	Read(flush func()) (*carrier.Packet, error)
	// Answer hands the host, at once, a complete packet behind headroom of zeros. It
	// may fail in silence.
	Answer(p *carrier.Packet)
	// newWriter returns one more way to hand packets to the host, for one goroutine.
	newWriter() writer
	// stop makes the Read in progress, and every later one, return at once.
	stop()
}

// writer is where the host takes packets, used by one goroutine. Several
// may write to one host.
type writer interface {
	// Write hands a packet to the host, with its offloads done if the host
	// does not do them, and counts what became of it, at the next Flush at the
	// latest. It may change the bytes of the packet, which ParseIP read into ip.
	Write(p *carrier.Packet, ip *encap.IP, c *carrier.Counters)
	// Flush does what Write put off.
	Flush(c *carrier.Counters)
}
