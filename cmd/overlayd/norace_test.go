//go:build !race

package main

const (
	raceEnabled = false
	slowdown    = 1 // by how much the race detector stretches what is waited for
)
