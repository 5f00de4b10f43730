package control

import (
	"net/netip"
	"sync"
)

// NodeNamer is a Store that shows the names of nodes.
type NodeNamer interface {
	// NodeName returns the name of the node that publishes an address, or did last, safe to print; empty if the store
	// has not shown it.
	NodeName(public netip.Addr) string
}

// NodeNames keeps what a Store has shown of the names of nodes, also of those that have gone: that is when people ask.
// A Store embeds it to be a NodeNamer. The zero value is ready; it may be used by several goroutines.
type NodeNames struct {
	mu    sync.RWMutex
	names map[netip.Addr]string
}

const (
	maxNodeNames  = 1 << 17
	nodeNameBytes = 64
)

// SawNode notes the name of the node that publishes an address. An empty name says nothing.
func (n *NodeNames) SawNode(public netip.Addr, name string) {
	if name == "" || !public.IsValid() {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.names == nil {
		n.names = map[netip.Addr]string{}
	}
	if _, known := n.names[public]; known || len(n.names) < maxNodeNames {
		n.names[public] = Printable(name, nodeNameBytes)
	}
}

// NodeName implements NodeNamer.
func (n *NodeNames) NodeName(public netip.Addr) string {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.names[public]
}
