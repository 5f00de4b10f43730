package main

import (
	"fmt"
	"sync"

	"github.com/overlayd/overlayd/control"
)

// overlays are the network configs that a daemon serves, by the name of the network. Two that
// overlap would take each other's routes, and of two with one VNI neither is the device's.
type overlays struct {
	mu     sync.Mutex
	served map[string]control.Network
}

// take adds the config of a network, and returns what takes it away again. An error names
// the other network that it does not go with.
func (o *overlays) take(name string, c control.Network) (giveBack func(), err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for other, served := range o.served {
		if served.Backend.VNI == c.Backend.VNI {
			return nil, fmt.Errorf("network config: Backend.VNI %d is that of network %s, which is served: want another", c.Backend.VNI, other)
		}
		for _, p := range c.Prefixes() {
			for _, q := range served.Prefixes() {
				if p.Overlaps(q) {
					return nil, fmt.Errorf("network config: %s overlaps %s of network %s, which is served: want another", p, q, other)
				}
			}
		}
	}
	if o.served == nil {
		o.served = map[string]control.Network{}
	}
	o.served[name] = c
	return func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		delete(o.served, name)
	}, nil
}
