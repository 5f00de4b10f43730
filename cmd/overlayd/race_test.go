//go:build race

package main

const (
	raceEnabled = true
	slowdown    = 4 // by how much the race detector stretches what is waited for
)
