package fit

import (
	"fmt"
	"sync"

	"github.com/overlayd/overlayd/control"
)

// Served are the network configs that a daemon serves, by the name of the network. Two that
// overlap would take each other's routes, and two with one VNI would need the same device.
type Served struct {
	mu     sync.Mutex
	served map[string]control.Network
}

// Add adds the config of a network, and returns what removes it. An error names the other network
// that it does not go with.
func (s *Served) Add(name string, c control.Network) (remove func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for other, served := range s.served {
		if err := conflict(c, other, served); err != nil {
			return nil, err
		}
	}
	if s.served == nil {
		s.served = map[string]control.Network{}
	}
	s.served[name] = c
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.served, name)
	}, nil
}

// conflict returns why a config cannot be served beside that of another network; nil if it can.
func conflict(c control.Network, other string, served control.Network) error {
	if served.Backend.VNI == c.Backend.VNI && c.Backend.IsVXLAN() { // the other types have addresses in common then
		return fmt.Errorf("network config: Backend.VNI %d is that of network %s, which is served: want another", c.Backend.VNI, other)
	}
	for _, p := range c.Prefixes() {
		for _, q := range served.Prefixes() {
			if p.Overlaps(q) {
				return fmt.Errorf("network config: %s overlaps %s of network %s, which is served: want another", p, q, other)
			}
		}
	}
	return nil
}
