package userspace

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/overlayd/overlayd/dataplane"
)

// Port is one UDP port of this host, with all sockets that VXLAN networks with this
// port need. A [Dataplane] has one of its own, unless Config.Shared names one that
// several networks share: what is received is given to the network of its VNI,
// and a network can come and go without a packet of the others being lost.
//
// The sockets are opened with the first network, whose device may have to make room for
// them. Those of two processes cannot have one port.
type Port struct {
	cfg     Config        // as checkPort wants it
	opened  chan struct{} // closed once there are sockets
	workers []*portWorker // then constant
	send    [families]*sendPorts
	gro     bool
	ended   chan struct{} // closed once Run has ended; with the last network the sockets are

	mu   sync.Mutex // of all below, and of opening, ending and closing
	vnis []uint32   // of the networks
}

// portWorker is a receiveWorker with its socket.
type portWorker struct {
	receiveWorker
	socket *udpReceiver
	family int
	index  int // among those of its family
}

var (
	// ErrVNITaken says that a network with that VNI is on the port already.
	ErrVNITaken = errors.New("another network of this port has the VNI")

	errPortClosed = errors.New("the port is closed: its Run has ended")
)

// NewPort makes a Port for networks whose Config has the same Port and the same Local
// addresses. It uses Log, Underlays, Port, Offloads and DF of cfg; an error
// names the field. Run has to be called, once: it releases what the networks made it acquire.
func NewPort(cfg Config) (*Port, error) {
	if err := cfg.checkPort(); err != nil {
		return nil, fmt.Errorf("open UDP port: %w", err)
	}
	return newPort(cfg), nil
}

func newPort(cfg Config) *Port {
	return &Port{cfg: cfg, opened: make(chan struct{}), ended: make(chan struct{})}
}

// isFor reports whether networks of cfg may use the port.
func (p *Port) isFor(cfg Config) bool {
	return slices.Equal(p.cfg.locals(), cfg.locals())
}

// Run receives for the networks until ctx ends and then returns nil, within 100 ms.
// A read error that may pass is logged and waited out; an error is returned when a
// socket is unusable. The Run of a network that is still there ends with an error then,
// for it would receive nothing.
func (p *Port) Run(ctx context.Context) error {
	defer p.end()
	select {
	case <-p.opened:
	case <-ctx.Done():
		return nil
	}
	g, ctx := errgroup.WithContext(ctx)
	for _, w := range p.workers {
		g.Go(func() error { return w.run(ctx, waitOut(p.cfg.Log, fmt.Sprintf("UDP port %d", p.cfg.Port))) })
	}
	g.Go(func() error {
		<-ctx.Done()
		for _, w := range p.workers {
			w.socket.stop()
		}
		return nil
	})
	return g.Wait()
}

// Stats returns what the networks' own do not have: DropBadVNI, DropQueueFull,
// DropBadHeader of what is too short for a VNI, and RxBatches. Those of a Port that
// is not shared are in [Dataplane.Stats].
func (p *Port) Stats() (s dataplane.Stats) {
	p.addTo(&s)
	return s
}

func (p *Port) addTo(s *dataplane.Stats) {
	if !p.isOpen() {
		return
	}
	for _, w := range p.workers {
		w.addTo(&s.RxPackets, &s.RxBytes, s)
		s.Drops[dataplane.DropQueueFull] += w.socket.drops()
		s.Offload.RxBatches += w.socket.batches.Load()
	}
}

// isOpen reports whether there are sockets.
func (p *Port) isOpen() bool { return isClosed(p.opened) }

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// check says why a network cannot enter.
func (p *Port) check(vni uint32) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.checkLocked(vni)
}

func (p *Port) checkLocked(vni uint32) error {
	if isClosed(p.ended) {
		return errPortClosed
	}
	if slices.Contains(p.vnis, vni) {
		return fmt.Errorf("VNI %d: %w", vni, ErrVNITaken)
	}
	return nil
}

// enter makes room for a network: the sockets are open when it returns. A device of
// several queues gets as many workers.
func (p *Port) enter(vni uint32, multi bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.checkLocked(vni); err != nil {
		return err
	}
	if p.workers == nil {
		if err := p.open(pairs(multi)); err != nil {
			p.close()
			p.workers, p.send = nil, [families]*sendPorts{} // the next network tries again
			return err
		}
		close(p.opened)
	}
	p.vnis = append(p.vnis, vni)
	return nil
}

// pairs returns how many workers there are of each kind.
func pairs(multi bool) int {
	if !multi {
		return 1
	}
	return min(runtime.GOMAXPROCS(0), maxPairs)
}

// maxPairs bounds the pairs of workers, each of which has 5 MB of buffers.
const maxPairs = 8

// open opens the sockets.
func (p *Port) open(pairs int) error {
	for _, local := range p.cfg.locals() {
		f := family(local.Addr())
		sockets, gro, err := openReceivers(p.cfg.Log, local, pairs, p.cfg.Offloads)
		if err != nil {
			return err
		}
		p.gro = gro
		for i, s := range sockets {
			p.workers = append(p.workers, &portWorker{receiveWorker: receiveWorker{receiver: s}, socket: s, family: f, index: i})
		}
		if p.send[f], err = openSendPorts(p.cfg.Log, local.Addr(), p.cfg.Offloads, p.cfg.DF); err != nil {
			return err
		}
	}
	return nil
}

// exit takes away a network that entered, and its lanes. Nothing uses these any more
// when it returns.
func (p *Port) exit(vni uint32) {
	for _, w := range p.workers {
		w.detach(vni)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.vnis = slices.DeleteFunc(p.vnis, func(v uint32) bool { return v == vni })
	if isClosed(p.ended) && len(p.vnis) == 0 {
		p.close()
	}
}

// wait returns nil when ctx ends, an error when Run has ended before.
func (p *Port) wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-p.ended:
		return errPortClosed
	}
}

// end is the end of Run.
func (p *Port) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.ended)
	if len(p.vnis) == 0 {
		p.close()
	}
}

func (p *Port) close() {
	for _, w := range p.workers {
		w.socket.close()
	}
	for _, s := range p.send {
		if s != nil {
			s.close()
		}
	}
}

// newSenders makes the senders of one worker, by family.
func (p *Port) newSenders() (out [families]sender) {
	for f, s := range p.send {
		if s != nil {
			out[f] = newUDPSender(s, f == family6)
		}
	}
	return out
}

// segments returns how many datagrams one message carries.
func (p *Port) segments() (n int32) {
	for _, s := range p.send {
		if s != nil {
			n = max(n, s.segments.Load())
		}
	}
	return n
}

// refresh forgets what is no more of the paths to the VTEPs of t.
func (p *Port) refresh(t *table) {
	for _, s := range p.send {
		if s != nil {
			s.refresh(t)
		}
	}
}
