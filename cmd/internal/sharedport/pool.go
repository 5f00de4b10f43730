// Package sharedport has the UDP ports that networks of the userspace dataplane share within a daemon.
package sharedport

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"github.com/overlayd/overlayd/cmd/internal/handover"
	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/carrier"
	"github.com/overlayd/overlayd/dataplane/inherit"
	"github.com/overlayd/overlayd/dataplane/userspace"
)

// Pool holds the UDP ports that networks of the userspace dataplane share: those with one port
// and the same underlay addresses have one set of sockets, and the VNI of a datagram tells which
// network it is for.
type Pool struct {
	Estate *handover.Estate     // may have their sockets from the daemon before
	Forget func(names []string) // is called when sockets of these names were closed

	mu    sync.Mutex
	ports map[string]*pooledPort     // by port and underlays
	past  map[string]dataplane.Stats // likewise: what those counted that were closed
}

// Port is a UDP port that networks share.
type Port struct {
	*userspace.Port
	before dataplane.Stats // what those counted that had this place
}

// Stats returns what this port has counted, and those before it of this process.
func (p *Port) Stats() dataplane.Stats {
	s := p.before
	s.Add(p.Port.Stats())
	return s
}

type pooledPort struct {
	*Port
	users int
	names []string // of the sockets
	stop  context.CancelFunc
	done  chan struct{} // closed when Run has returned
}

// Take returns the port for a network of c, and what gives it back. It makes the port that
// does not exist yet. A port whose sockets have died ends its networks; once all of them have given it back, the
// next one to come makes another.
func (p *Pool) Take(c userspace.Config, log *slog.Logger) (port *Port, giveBack func(), err error) {
	key := fmt.Sprint(c.Port, c.Underlays)
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.ports[key]
	if e == nil {
		c.Log = log
		names := inherit.PortNames(c.Underlays, c.Port)
		c.Inherited, c.Unfit = p.Estate.Take(func(name string) bool { return slices.Contains(names, name) }), p.Estate.Unkeep
		c.Awaited = p.Estate.VNIs()
		port, err := userspace.NewPort(c)
		if err != nil {
			return nil, nil, err
		}
		ctx, stop := context.WithCancel(context.Background())
		e = &pooledPort{Port: &Port{port, p.past[key]}, names: names, stop: stop, done: make(chan struct{})}
		go func() { // put waits for it
			defer close(e.done)
			if err := port.Run(ctx); err != nil {
				log.Error("UDP port of the userspace dataplane died", "port", c.Port, "err", err)
			}
		}()
		if p.ports == nil {
			p.ports = map[string]*pooledPort{}
		}
		p.ports[key] = e
	}
	e.users++
	return e.Port, sync.OnceFunc(func() { p.put(key, e) }), nil
}

// put gives a port back; the last user closes it and waits for its goroutine.
func (p *Pool) put(key string, e *pooledPort) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e.users--; e.users > 0 {
		return
	}
	delete(p.ports, key)
	e.stop()
	<-e.done
	p.remember(key, e.Stats())
	p.Forget(e.names)
}

// maxPast bounds how many places counters are kept of: whoever writes the network configs chooses the ports.
const maxPast = 1 << 12

// remember keeps what a port has counted for the next one in its place. The caller holds mu.
func (p *Pool) remember(key string, s dataplane.Stats) {
	if _, ok := p.past[key]; !ok && len(p.past) >= maxPast {
		return
	}
	if p.past == nil {
		p.past = map[string]dataplane.Stats{}
	}
	p.past[key] = s
}

// Export returns what the ports read from.
func (p *Pool) Export() (all []carrier.Export, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.ports {
		exports, err := e.Export()
		if err != nil {
			carrier.CloseExports(all)
			return nil, err
		}
		all = append(all, exports...)
	}
	return all, nil
}

// Still ends the ports, whose networks end by themselves.
func (p *Pool) Still() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.ports {
		e.Still()
		e.stop()
		<-e.done
	}
}
