package dataplane

import "time"

// latelyMinutes is how long a repair counts as one of late, which people ask for.
const latelyMinutes = 10

// lately counts events by the minute: those of the last minute that had any, and of the nine before it. It is a value.
type lately struct {
	minute int64 // Unix time in minutes
	counts [latelyMinutes]uint64
}

// add returns l with n more events, now.
func (l lately) add(now time.Time, n uint64) lately {
	minute := now.Unix() / 60
	var next lately
	for i := range next.counts {
		// A clock that was set back makes the difference negative.
		if old := i - int(max(min(minute-l.minute, latelyMinutes), -latelyMinutes)); old >= 0 && old < len(l.counts) {
			next.counts[i] = l.counts[old]
		}
	}
	next.minute = minute
	next.counts[0] += n
	return next
}

// sum returns how many there were in the last ten minutes.
func (l lately) sum(now time.Time) (n uint64) {
	for _, c := range l.add(now, 0).counts {
		n += c
	}
	return n
}
