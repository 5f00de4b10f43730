// Package stream is the protocol between the daemon and the program that decodes captures: the request (GET /v1/capture on the
// admin socket) and the answer. It links neither gopacket nor the daemon.
//
// The answer is a sequence of frames, whose bytes package dataplane/capture describes:
//
//	hello    JSON: [Hello]. Its "v" is the version of all that follows
//	names    lines "address name": the node that has this VTEP from now on
//	packet   a packet, its verdict as an index of the verdicts in the hello
//	lost     how many packets the capture has lost so far
//	end      why the daemon ends the stream; empty: it was asked to
//
// A stream without an end was cut off.
package stream
