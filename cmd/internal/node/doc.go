// Package node is one host's life in its overlay networks: what runs, in which order, for how long,
// and how it is. It stands between control, which knows leases, and cmd/overlayd, which knows flags
// and people. It is told everything by a plain [Config]; what would link a server, or a client of
// one, is a function in it.
//
// # What outlives what
//
//	Daemon    daemon.go    the process: endpoints, the etcd that it runs, UDP ports (package sharedport),
//	                       the configs that are served (fit.Served), the networks (networks.go)
//	Network   network.go   one overlay network: its store, the claims of its subnet file and device, the
//	                       ID of this node, what the last session left (claims.go; package nodefile)
//	Session   session.go   one network config on one underlay: controller and overlay
//	Overlay   overlay      a package: the parts, from the moment they are opened until their Run has ended. Package parts
//	                       has their list and opens them (carried.go tells it for what)
//	Sync                   what is wanted now; the parts remember it themselves
//
// Each row owns what is written beside it, and ends what is below it before it ends itself. A
// session ends when its config or its underlay changes in more than the MTU (changes.go, hold.go); the next
// one waits for a usable config (await.go), chooses the underlay (underlay.go), reads what this host
// needs of it and opens an overlay. Package fit tells which configs this host can carry, and what a
// session would do with one before any is opened.
// A userspace dataplane forwards on from one session to the next, which goes on with it if it fits, or with its sockets and queues (kept.go).
// Devices, routes and rules outlive all rows: traffic goes on while a daemon restarts. The next session
// takes over what it needs and removes the rest.
//
// # The order of the parts, and one Sync
//
// Package parts has the list. Package overlay opens, syncs, runs, prunes and closes what is in it; its doc walks through one Sync.
//
// # How to add a part
//
// Write a dataplane.Part, and add a line to the list in package parts (list.go). Say in it what does not work
// without the part, if the overlay can do without.
//
// # Where a status field comes from
//
// The doc of package status lists the source of each field. Network.Status (snapshot.go) puts them
// together when somebody asks: the events of the session from an immutable snapshot, the leases and
// peers from the value that the controller publishes after every Sync, and the rest from the parts.
// Nobody who asks waits for a Sync. /readyz and the notice to systemd read the same snapshot.
// The service manager is told the verdict, and that no loop is stuck (manager.go); a store that shows events to people is told
// what is wrong with this node (events.go).
//
// # What is waited for, and when the process is set up
//
// An overlay that cannot be opened ends the daemon in its first session, so that whoever started it sees why; but a UDP port
// that somebody has is waited for (parts.IsPortTaken): any user of the host can take it. When a network is ready for the first time, Config.Settled
// tells the caller, which then gives up the rights that the process no longer needs (cmd/overlayd/rights.go).
//
// # Who owns the claims
//
// A Network claims its subnet file (package nodefile) for as long as it is served, and the device of its
// VNI from its first session until it wants another device. Both are locks (package claim) on files
// that only the daemon's user can open, and end with the process. Cleanup claims what it removes, and
// Drain the subnet file of a daemon that does not run.
//
// # How the kernel takes over
//
// Daemon.StopToKernel (handover.go) opens a kernel dataplane beside each userspace one, and has these free the UDP
// port and go on forwarding. It syncs the kernel with what was last wanted, gives it what comes to the
// port, and ends the userspace dataplanes; then Run ends. DrainToKernel (drain_kernel.go) has a daemon
// do so by a signal, or runs one by itself. In the other direction the userspace dataplane opens beside the
// kernel's devices and takes their place in its first Sync.
//
// # How another daemon takes over
//
// A daemon listens at a socket beside each of its subnet files (package handover). One that is started with Config.Replace
// finds a subnet file claimed, makes sure that it can serve the network, and asks there (replace.go). The running
// daemon stops forwarding and hands over its TUN queues and UDP sockets, if it has any, the listeners of its endpoints,
// the locks of its subnet files, its nonce and the handles of its entries in the store (give.go), and ends as at the end
// of its context, but withdraws nothing: lease, record, rules and routes stay. The new one waits for that end, and
// starts as usual. What has come meanwhile waits in the kernel until the first Overlay.Sync: that has the dataplane read at once
// (dataplane.Resumer), before it looks at any part; or the controller does so earlier, by the leases file, if the store takes long. Several networks that share a port wait for each other there. Of a daemon too old to be asked the new one takes duplicates of the
// queues and sockets, and stops it.
//
// Without a daemon in between, as after a crash, the service manager keeps queues, sockets and listener (keep.go). It is given
// them when a session is ready, and gives them up when the session ends before the process does.
//
// # What cleanup leaves
//
// Package leftovers removes what the last session, or any overlayd, has left on this host, and leaves what
// somebody else has made its own.
package node
