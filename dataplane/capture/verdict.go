package capture

import "github.com/overlayd/overlayd/dataplane"

// Verdict is what became of a packet.
type Verdict uint8

// The verdicts. Behind them is one for each dataplane.Drop. Their numbers may change from version to version, their names
// never do: a stream begins with the names.
const (
	Sent      Verdict = iota // given to the underlay; what the kernel refuses then is dropped as well
	Received                 // given to the host; what the device refuses then is dropped as well
	firstDrop                // the first dataplane.Drop
)

// Dropped returns the verdict of a packet that was dropped for that reason.
func Dropped(why dataplane.Drop) Verdict { return firstDrop + Verdict(why) }

// IsDrop reports whether the packet was dropped.
func (v Verdict) IsDrop() bool { return v >= firstDrop }

// String returns the name of the verdict: "tx", "rx" or "drop:" and the reason.
func (v Verdict) String() string {
	switch v {
	case Sent:
		return "tx"
	case Received:
		return "rx"
	}
	return "drop:" + dataplane.Drop(v-firstDrop).String()
}

// Verdicts returns the names of all verdicts, by number.
func Verdicts() []string {
	names := make([]string, 0, int(firstDrop)+dataplane.NumDrops)
	for v := range firstDrop + dataplane.NumDrops {
		names = append(names, v.String())
	}
	return names
}
