//go:build race

package guard

// slowdown is by how much the race detector stretches what is timed.
const slowdown = 10
