//go:build race

package embedded

const raceEnabled = true // memory is no measure with it
