// Package capture copies packets from running workers to readers, and never makes a worker wait.
//
// The files in the order of a packet's copy:
//
//   - point.go: each worker has a [Point]. Without a capture it costs one atomic load; else it gives a [Tap] for each packet
//   - ring.go: a Tap copies the packet to one ring for each capture. One worker fills a ring and one reader empties it, without
//     lock, allocation or wait. If the ring is full, the copy is lost and counted; the packet itself is forwarded
//   - hub.go: the [Hub] knows the Points and the captures of a process. Both come and go at any time
//   - capture.go: a [Capture] reads all of its rings, the oldest packet first
//   - frame.go: the format in a ring is also the format that the reader sends, byte for byte
//   - reader.go: [Reader] reads such a stream from any source
//
// A packet is copied as it is: a superpacket in one piece, a partial checksum partial. [Meta] says so.
package capture
