// Package device is the overlay's TUN device in the kernel's eyes: it makes the device, or finds the one
// of an earlier process, takes the place of vxlan devices without a gap, and keeps its addresses and
// routes. Who carries the packets attaches to its queues by name.
package device
