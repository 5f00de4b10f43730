package netnstest

import "time"

// AwaitArrival waits until as many datagrams are received as were sent, and at most until none has come for a
// second: on a busy machine the last ones are late, and a deadline for the reader ends before it has run.
func AwaitArrival(sent uint64, received func() uint64) {
	const look = 5 * time.Millisecond
	last := received()
	for quiet := time.Duration(0); last < sent && quiet < time.Second; quiet += look {
		time.Sleep(look)
		if n := received(); n > last {
			last, quiet = n, 0
		}
	}
}
