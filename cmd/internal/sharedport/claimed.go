package sharedport

import "sync"

// Claimed are the VNIs whose devices the networks of a daemon have claimed. In userspace mode
// the kernel's vxlan devices of all of them are in the way of the UDP port that they share.
type Claimed struct {
	mu   sync.Mutex
	vnis map[uint32]bool
}

// Add adds a VNI.
func (c *Claimed) Add(vni uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.vnis == nil {
		c.vnis = map[uint32]bool{}
	}
	c.vnis[vni] = true
}

// Remove removes a VNI.
func (c *Claimed) Remove(vni uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.vnis, vni)
}

// Has reports whether a VNI is among them.
func (c *Claimed) Has(vni uint32) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.vnis[vni]
}
