package userspace

import (
	"errors"
	"fmt"
	"strings"

	"github.com/overlayd/overlayd/dataplane"
)

// The forwarder changes without a gap. The old one forwards until the new one forwards all, and what takes time
// is done while both can. Only one at a time can have the UDP port: while it changes hands,
// datagrams make a detour to the userspace dataplane (udp.Detour).

// syncAll is syncHost, and succeed if there are predecessors.
func (d *Dataplane) syncAll() error {
	s, ok := d.host.(successor)
	if !ok || len(s.predecessors()) == 0 {
		_, err := d.syncHost()
		d.late = d.enterLate()
		d.publish(err)
		return errors.Join(err, d.late)
	}
	if d.late = d.succeed(s); d.late != nil {
		d.late = fmt.Errorf("take the place of %s: %w", strings.Join(s.predecessors(), " and "), d.late)
		d.publish(nil)
		return d.late
	}
	_, err := d.syncHost()
	return err
}

// Resume implements dataplane.Resumer.
func (d *Dataplane) Resume(w dataplane.Wanted) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || d.wanted != nil {
		return
	}
	if s, ok := d.host.(successor); ok && len(s.predecessors()) > 0 {
		return // the kernel forwards
	}
	_, _ = d.core.sync(w), d.enterLate() // Sync does all of it again, and has the errors
	if h, ok := d.host.(newcomer); ok && h.isNew() {
		w.Peers = d.core.forwarding.Load().peers
		_, _, _ = d.host.sync(w)
	}
}

// enterLate enters the port: what is inherited waits for Resume or the first Sync.
func (d *Dataplane) enterLate() error {
	d.port.opening.Lock()
	defer d.port.opening.Unlock()
	return d.enter(nil)
}

// succeed takes the place of the devices that have forwarded until now.
func (d *Dataplane) succeed(s successor) error {
	d.port.opening.Lock()
	defer d.port.opening.Unlock()
	if err := d.enterBeside(s); err != nil {
		return err
	}
	_, _ = d.syncHost() // the host's traffic comes here now; what is refused because of the predecessors is tried again without them
	if err := d.enter(s.stop); err != nil {
		return err
	}
	if err := d.port.arrive(s.stop); err != nil {
		return err
	}
	return s.settle(d.wanted.Networks)
}

// enterBeside enters the port while the predecessors have it, if that is possible. If not, succeed enters it
// later, and what the host sends meanwhile waits in the queues.
func (d *Dataplane) enterBeside(s successor) error {
	if isClosed(d.entered) {
		return nil
	}
	if err := s.check(d.port.unbound()); err != nil {
		return err
	}
	d.log.Info("taking the place of a vxlan device", "device", s.predecessors())
	if err := s.prepare(d.wanted.MTU); err != nil {
		return err
	}
	if d.in != nil && len(d.port.unbound()) == 0 {
		return nil // the inherited sockets have the port already
	}
	if err := d.port.openBeside(len(d.host.queues())); err != nil && !errors.Is(err, errPortClosed) { // of which enter tells
		d.log.Info("the UDP port changes hands without a detour: a few packets may be lost", "why", err)
		return nil
	}
	return d.enter(nil)
}

// MakeRoom frees the UDP port for vxlan devices of the kernel and goes on forwarding: what comes to the port makes
// a detour, until LetGo. The device and its routes are left to the caller from now on. After an error
// the dataplane has to be closed, to free the port.
func (d *Dataplane) MakeRoom() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.port.leave(); err != nil {
		return fmt.Errorf("free the UDP port: %w", err)
	}
	d.wanted = nil
	return nil
}

// LetGo gives what comes to the UDP port to whoever has it.
func (d *Dataplane) LetGo() { d.port.letGo() }
