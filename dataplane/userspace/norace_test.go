//go:build !race

package userspace

// slowdown is by how much the race detector stretches what is timed.
const slowdown = 1
