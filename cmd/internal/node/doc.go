// Package node runs one host's part in its overlay networks: what runs, in which order, for how long,
// and what state it is in. It stands between control, which knows leases, and cmd/overlayd, which knows flags
// and people. A plain [Config] tells it everything. Whatever would link a server, or a client of
// one, is a function in the Config.
//
// # What outlives what
//
//	Daemon    daemon.go    the process: endpoints, the etcd that it runs, UDP ports (package sharedport),
//	                       the configs that it serves (fit.Served), the networks (networks.go)
//	Network   network.go   one overlay network: its store, the claims of its subnet file and device, the
//	                       ID of this node (claims.go), what earlier sessions left (earlier.go; package nodefile)
//	Session   session.go   one network config on one underlay: controller and overlay
//	Overlay   overlay      a package: the parts, from Open until their Run has ended. Package parts
//	                       has their list and opens them (carried.go says for which config)
//	Sync                   what is wanted now; the parts remember it themselves
//
// Each row owns what stands beside it, and ends the rows below it before it ends itself.
//
// A session ends when its config or its underlay changes in more than the MTU (changes.go, hold.go). The next
// session waits for a usable config (await.go), chooses the underlay (underlay.go), reads what this host
// needs from it, and opens an overlay. Package fit says which configs this host can carry, and what a
// session would do with one, before any is opened.
//
// A userspace dataplane keeps forwarding from one session to the next. The next session goes on with it if it fits, or
// else with its sockets and queues (kept.go). Devices, routes and rules outlive all rows, so that traffic goes on while a
// daemon restarts. The next session takes over what it needs and removes the rest.
//
// # The order of the parts, and one Sync
//
// Package parts has the list of parts. Package overlay opens, syncs, runs, prunes and closes them; its doc walks through one Sync.
//
// # How to add a part
//
// Write a dataplane.Part, and add a line to the list in package parts (list.go). If the overlay can do without the
// part, the line says what does not work then.
//
// # Where a status field comes from
//
// The doc of package status lists the source of each field. When somebody asks, Network.Status (snapshot.go) puts them
// together: the events of the session from an immutable snapshot, the leases and
// peers from the value that the controller publishes after every Sync, and the rest from the parts.
// So nobody who asks waits for a Sync. /readyz and the notice to systemd read the same snapshot.
// manager.go tells the service manager the verdict, and that no loop is stuck. If a store can show events to people,
// events.go tells it what is wrong with this node.
//
// # What is waited for, and when the process is set up
//
// If the overlay of the first session cannot be opened, the daemon ends, so that whoever started it sees why. There is one
// exception: if another process has the UDP port, the daemon waits (parts.IsPortTaken), because any user of the host can take that port. When
// a network is ready for the first time, Config.Settled tells the caller. The caller then gives up the rights that the process no longer
// needs (cmd/overlayd/rights.go).
//
// # Who owns the claims
//
// A Network claims its subnet file (package nodefile) for as long as it is served. It claims the device of its
// VNI from its first session until it wants another device. Both claims are locks (package claim) on files
// that only the daemon's user can open, and end with the process. Cleanup claims what it removes. If no daemon
// runs, Drain claims the subnet file.
//
// # How the kernel takes over
//
// Daemon.StopToKernel (handover.go) does it in this order:
//
//  1. It opens a kernel dataplane beside each userspace dataplane.
//  2. It has the userspace dataplanes free the UDP port and go on forwarding.
//  3. It syncs the kernel dataplanes with what was last wanted, and gives them what comes to the port.
//  4. It ends the userspace dataplanes; then Run ends.
//
// DrainToKernel (drain_kernel.go) makes a daemon do so by a signal, or runs one itself. In the other direction the userspace
// dataplane opens beside the kernel's devices, and takes their place in its first Sync.
//
// # How another daemon takes over
//
// A daemon listens at a socket beside each of its subnet files (package handover). A daemon that is started with Config.Replace
// finds a subnet file claimed, makes sure that it can serve the network, and asks at that socket (replace.go).
//
// The running daemon hurries (policy.go), stops forwarding and hands over (give.go): its TUN queues and UDP sockets, if it has any, the listeners of its
// endpoints, the locks of its subnet files, its nonce, and the handles of its entries in the store. It then ends as when its context
// ends, but withdraws nothing: lease, record, rules and routes stay.
//
// The new daemon waits for that end, and starts as usual. Packets that come meanwhile wait in the kernel until the first
// Overlay.Sync, which has the dataplane read at once (dataplane.Resumer), before it looks at any part. If the
// store takes long, the controller does so earlier, with the peers of the leases file. Several networks that share a port wait there for each other.
// If the old daemon is too old to be asked, the new one duplicates its queues and sockets, and stops it.
//
// Between two daemons, as after a crash, the service manager keeps queues, sockets and listener (keep.go). It gets
// them when a session is ready. It has to give them up when the session ends before the process does.
//
// # What cleanup leaves
//
// Package leftovers removes what the last session, or any overlayd, has left on this host. It leaves what
// another program has taken over.
package node
