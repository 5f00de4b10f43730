package carrier

import (
	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/encap"
)

// Description has the facts about a carrier that never change, and are known before it is open.
type Description struct {
	Family   int // family of the underlay: Family4 or Family6
	Headroom int // bytes that its senders need in front of a packet: at least encap.HeaderLen
}

// Opener opens a carrier for a number of workers, each of which may have a receiver.
type Opener struct {
	Description
	Open       func(workers int) (Carrier, error)
	OpenBeside func(workers int) (Carrier, error) // while others have the port: a Mover; nil: not possible
}

// Carrier is one way to and from the underlay of one family. The core that opened it owns it, and
// calls Refresh and AddTo on any goroutine, even after Close.
type Carrier interface {
	// NewSender makes the sender of one worker of a network.
	NewSender() Sender
	// Receivers returns its receivers, always the same.
	Receivers() []Receiver
	// Refresh finds out the path MTU to the peers of these entries. mtu is that of the host's device.
	// It is called regularly, and again soon if it returns true.
	Refresh(entries []Entry, mtu int) (soon bool)
	// AddTo adds the carrier's own counts to s: DropQueueFull, DropFlood, NarrowPaths and RxBatches.
	AddTo(s *dataplane.Stats)
	// Close releases everything, after the receivers were stopped. It may be called more than once.
	Close()
}

// Mover is a carrier that can receive while somebody else has its port. Datagrams to the port reach it
// by a detour.
type Mover interface {
	// Leave begins the detour and frees the port, if the carrier has it.
	Leave() error
	// Arrive takes the port, which is free, and ends the detour, if there is one.
	Arrive() error
	// LetGo ends the detour: the owner of the port then gets what comes to it.
	LetGo()
}

// Sender is the way out to the underlay of one family, used by one goroutine.
type Sender interface {
	// Send sends the encapsulated packet p to e's peer and counts the outcome,
	// at the next Flush at the latest. It decides how a superpacket is split.
	// It may change p's bytes. fragment says that p is longer than the path MTU, and
	// that its sender allows the underlay to fragment it.
	Send(p *Packet, e *Entry, fragment bool, c *Counters)
	// Flush does what Send put off.
	Flush(c *Counters)
}

// Receiver is the way in from the underlay. One goroutine uses it, except for Stop.
type Receiver interface {
	// Receive waits for the next datagram, and sets every field of d. It lends the datagram: it calls
	// flush before it uses the bytes of a datagram again, and before it waits. After Stop it returns
	// os.ErrDeadlineExceeded.
	Receive(d *Datagram, flush func()) error
	// Stop makes the Receive in progress, and every later one, return at once.
	Stop()
}

// Guesser is a receiver that is not told which offloads packets still need. It is asked once the
// datagram was accepted.
type Guesser interface {
	// Guess completes p.Offload, which has what is certain. ParseIP read p into ip, and p goes to a
	// host of that MTU. Guess may change its bytes. ok is false for a packet that nobody can deliver.
	Guess(p *Packet, ip *encap.IP, mtu int) (why dataplane.Drop, ok bool)
}

// Describer is a carrier or a host that can tell its abilities, as attributes of a log line.
type Describer interface{ Describe() []any }

// Keeper is a carrier that keeps objects on this host besides its sockets.
type Keeper interface {
	// Objects counts these objects, and returns the repairs since the last call.
	Objects() ([]dataplane.ObjectStatus, []dataplane.Change)
}
