package kernel

import "github.com/overlayd/overlayd/dataplane"

// Stats returns the devices' counters since Open: inner packets and the bytes
// of their IP packets, and what was dropped, most of it as DropDevice.
func (d *Dataplane) Stats() (sum dataplane.Stats) {
	for _, t := range d.tunnels {
		sum.Add(t.stats.Read(d.rt, int(t.watched.Load())))
	}
	return sum
}
