// Package testbed makes hosts out of network namespaces on one machine and
// measures what goes between them. overlayd demo and bench/compare use it.
//
// The walk: prefix.go (the names by which a later run finds what is left) →
// testbed.go (an underlay and the hosts on it) → host.go (a namespace, its pod) →
// namespace.go, link.go (namespaces, veth pairs, addresses) → process.go (a daemon
// in a host), supervisor.go (one that is started again, as by systemd) → subnetfile.go (what the daemon reports when it is ready) →
// pair.go (who can reach whom) → ping.go, stream.go on socket.go (the traffic).
//
// Sockets block, as those of iperf and ping do: Go's network poller would add its
// own wake-ups to every figure. It all needs root and Linux.
package testbed
