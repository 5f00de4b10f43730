//go:build !race

package embedded

const raceEnabled = false // memory is no measure with it
