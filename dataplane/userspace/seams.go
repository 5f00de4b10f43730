package userspace

import (
	"context"
	"net/netip"

	"github.com/overlayd/overlayd/dataplane"
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
	// watch calls changed after such a change: sync is needed. It returns nil when ctx ends.
	watch(ctx context.Context, changed func()) error
}

// successor is a host that takes the place of devices which forward until the first Sync, so that
// they carry the traffic while the store is asked. Its methods are called in this order, each one
// again if it or a later one fails.
type successor interface {
	// predecessors returns the names of these devices: nothing once settle was successful.
	predecessors() []string
	// check returns why the host cannot take their place: its own device is gone, or others hold
	// the port of locals too.
	check(locals []netip.AddrPort) error
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
	Read(flush func()) (*packet, error)
	// Answer hands the host, at once, a complete packet behind headroom of zeros. It
	// may fail in silence.
	Answer(p *packet)
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
	Write(p *packet, ip *encap.IP, c *counters)
	// Flush does what Write put off.
	Flush(c *counters)
}

// description is what never changes of a carrier, and is known before it is open.
type description struct {
	name     string // for people
	family   int    // of the underlay
	headroom int    // in bytes, that its senders need in front of a packet: at least encap.HeaderLen
}

// opener makes a carrier for a number of workers.
type opener struct {
	description
	open func(workers int) (carrier, error)
}

// carrier is one way to and from the underlay of one family. A Port owns it.
type carrier interface {
	// newSender returns the sender of the i-th worker of a network.
	newSender(i int) sender
	// receivers returns its receivers, always the same.
	receivers() []receiver
	// refresh forgets what is no longer true of the paths to the peers of f.
	refresh(f *forwarding)
	// addTo adds to s what the carrier counted itself: DropQueueFull and RxBatches.
	addTo(s *dataplane.Stats)
	// close releases everything, after the receivers were stopped.
	close()
}

// sender is the way out to the underlay of one family, used by one goroutine.
type sender interface {
	// Send sends the encapsulated packet p to e's peer and counts what became of it,
	// at the next Flush at the latest. How a superpacket is split is its business.
	// It may change p's bytes. fragment says that p is longer than the path takes, and
	// that whoever made p allows the underlay to fragment it.
	Send(p *packet, e *entry, fragment bool, c *counters)
	// Flush does what Send put off.
	Flush(c *counters)
}

// receiver is the way in from the underlay, used by one goroutine but for stop.
type receiver interface {
	// Receive waits for the next datagram, and makes all of it. Datagrams are borrowed: before
	// Receive uses the bytes of any again, and before it waits, it calls flush. It ends with
	// os.ErrDeadlineExceeded after stop.
	Receive(d *datagram, flush func()) error
	// stop makes the Receive in progress, and every later one, return at once.
	stop()
}

// guesser is a receiver that is not told what packets leave to be done. It is asked once the
// lane has judged the datagram.
type guesser interface {
	// guess completes p.Offload, which has what is certain. ParseIP read p into ip, and p goes to a
	// host of that MTU. guess may change its bytes. It is not ok for a packet that nobody can deliver.
	guess(p *packet, ip *encap.IP, mtu int) (why dataplane.Drop, ok bool)
}

// describer is a host or a carrier that can tell its abilities, as attributes of a log line.
type describer interface{ describe() []any }
