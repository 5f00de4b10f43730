// Package capture copies packets of running workers to whoever watches them, and never holds a worker up.
//
// The files in the order of a packet's copy:
//
//   - point.go: a worker has a [Point]. It is one atomic load if nobody captures, else it has a [Tap] for each packet
//   - ring.go: a Tap copies the packet to a ring for each capture. A worker fills a ring and one reader empties it:
//     no lock, no allocation, no wait. A full ring loses the copy and counts it; the packet goes on
//   - hub.go: the [Hub] knows the Points of a process and its captures. Both come and go at any time
//   - capture.go: a [Capture] reads all rings that were made for it, the oldest packet first
//   - frame.go: what stands in a ring is what the reader sends, byte for byte
//   - reader.go: [Reader] reads such a stream, wherever it comes from
//
// A packet is copied as it is: a superpacket in one piece, a partial checksum partial. [Meta] says so.
package capture
