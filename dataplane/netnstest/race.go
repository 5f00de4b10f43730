//go:build race

package netnstest

import "time"

// Raced reports whether the race detector runs, which makes code several times slower.
const Raced = true

// Within returns how long to wait for what takes at most d: four times as long with the race detector.
func Within(d time.Duration) time.Duration { return 4 * d }
