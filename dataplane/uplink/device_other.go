//go:build !linux

package uplink

// device exists on Linux only.
type device struct{}
