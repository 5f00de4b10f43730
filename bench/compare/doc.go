// Command compare measures overlays side by side, in one run on one machine:
// nothing (bare veth), the kernel's vxlan, overlayd with its dataplanes, the
// peers that Debian packages, and flanneld if it is on PATH.
//
// Every candidate gets two hosts of its own: processes with a network namespace
// each, joined by one veth pair. All candidates are up at the same time and are
// measured in turn, round by round, so that other load on the machine meets
// them all alike. The ends of the overlay are the hosts' own overlay addresses.
//
// Besides the rows there are checks: a figure must not fall far behind another figure of the same round. They show what the guard
// costs, and how attacks by a third host on the link affect a stream (attack.go).
//
// The walk: main.go (flags) → run.go (underlays, rounds) → pair.go (two hosts) →
// candidates.go and setup_*.go (the overlay between them) → measure.go (one row of
// one round) → package agent (in the host's process) → report.go, table.go (what came out).
// checks.go says what a check is, cost.go compares rows, attack.go the same overlay with and without an attack.
// memory.go is separate: it measures the memory of a daemon with many peers.
package main
