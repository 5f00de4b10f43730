package userspace

import (
	"errors"

	"github.com/overlayd/overlayd/dataplane/carrier"
)

// errNoDetour says that a carrier of the Port needs the port for itself.
var errNoDetour = errors.New("not every carrier can receive beside others")

// openBeside opens the carriers while others have the port, if they can do so. Received datagrams wait until a
// network enters.
func (p *Port) openBeside(workers int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if isClosed(p.ended) {
		return errPortClosed // else nobody would close the carriers
	}
	if p.workers != nil {
		return nil
	}
	for _, o := range p.openers {
		err := errNoDetour
		if o.OpenBeside != nil {
			err = p.add(o.Family, o.OpenBeside, workers)
		}
		if err != nil {
			p.abandon()
			return err
		}
	}
	return nil
}

// arrive makes each carrier take its port, once free has made room for it. A carrier that already has it stays.
func (p *Port) arrive(free func(family int) error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, c := range p.carriers {
		m, ok := c.(carrier.Mover)
		if !ok {
			continue
		}
		if err := free(p.openers[i].Family); err != nil {
			return err
		}
		if err := m.Arrive(); err != nil {
			return err
		}
	}
	return nil
}

// leave frees the port. Until letGo the Port still receives what comes to it.
func (p *Port) leave() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.carriers {
		m, ok := c.(carrier.Mover)
		if !ok {
			return errNoDetour
		}
		if err := m.Leave(); err != nil {
			return err
		}
	}
	return nil
}

// letGo ends that: from then on the owner of the port gets what comes to it.
func (p *Port) letGo() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.carriers {
		if m, ok := c.(carrier.Mover); ok {
			m.LetGo()
		}
	}
}
