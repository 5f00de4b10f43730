//go:build !race

package netnstest

// Raced reports whether the race detector runs, which makes code several times slower.
const Raced = false
