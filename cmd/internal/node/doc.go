// Package node is one host's life in its overlay networks: what runs, in which order, for how long,
// and how it is. It stands between control, which knows leases, and cmd/overlayd, which knows flags
// and people. It is told everything by a plain [Config]; what would link a server, or a client of
// one, is a function in it.
//
// # What outlives what
//
//	Daemon    daemon.go    the process: health endpoint, embedded etcd, UDP ports (ports.go, room.go),
//	                       the configs that are served (overlapping.go), the networks (networks.go)
//	Network   network.go   one overlay network: its store, the claims of its subnet file and device,
//	                       the ID of this node, what the last session left (leftovers.go)
//	Session   session.go   one network config on one underlay: controller and overlay
//	Overlay   overlay.go   the parts, from the moment they are opened until their Run has ended
//	Sync                   what is wanted now; the parts remember it themselves
//
// Each row owns what is written beside it, and ends what is below it before it ends itself. A
// session ends when its config or its underlay changes in more than the MTU (changes.go); the next
// one waits for a usable config (await.go), chooses the underlay (underlay.go), reads what this host
// needs of it (needs.go) and opens an overlay. forecast.go says without a session what one would do.
// Devices, routes and rules outlive all rows: traffic goes on while a daemon restarts. The next session
// takes over what it needs and removes the rest.
//
// # The order of the parts
//
// parts.go has the list. Parts are opened, synced and started in that order; they are pruned and
// closed in the reverse one.
//
// # One Sync
//
//  1. The controller has a new lease or new peers, or an MTU: control.Controller calls Overlay.Sync.
//     When routing on the host changes, a part asks for a Sync of what was last wanted: Overlay.resync.
//  2. Sync of each part, in order. It adds and changes, and hands on what is left to do: the direct
//     routes mark their peers, and the dataplane gives those no route of its own.
//  3. Prune of each part, in reverse order. It removes what is no longer wanted, unless a part after
//     it failed as a whole: that one may still rely on it.
//  4. The errors are joined. One of a single peer leaves the others alone. One of an optional part is
//     logged once and makes it degraded (slot.go): that is the rules if nobody asked to masquerade.
//
// # How to add a part
//
// Write a dataplane.Part, and add a line to the list in parts.go. Say in it what does not work
// without the part, if the overlay can do without.
//
// # Where a status field comes from
//
// The doc of package status lists the source of each field. Network.Status (snapshot.go) puts them
// together when somebody asks: the events of the session from an immutable snapshot, the leases and
// peers from the value that the controller publishes after every Sync, and the rest from the parts.
// Nobody who asks waits for a Sync. /readyz and the notice to systemd read the same snapshot.
//
// # Who owns the claims
//
// A Network claims its subnet file (nodefile.go) for as long as it is served, and the device of its
// VNI from its first session until it wants another device. Both are locks (package claim) on files
// that only the daemon's user can open, and end with the process. Cleanup claims what it
// removes, and Drain the subnet file of a daemon that does not run.
//
// # How the kernel takes over
//
// Daemon.StopToKernel (handover.go) opens a kernel dataplane beside each userspace one, ends that and
// syncs the kernel with what was last wanted; then Run ends. DrainToKernel (drain_kernel.go) has a daemon
// do so by a signal, or runs one by itself. In the other direction the userspace dataplane opens beside the
// kernel's devices and takes their place in its first Sync.
//
// # What cleanup leaves
//
// A device keeps overlayd's alias after a flanneld has taken it over. Therefore Cleanup, and a session that
// removes what the last one left, look for what overlayd never makes (others.go): routes of other
// protocols, flannel's rules, a running flanneld, a subnet file that another has written (written.go). From
// such a device they remove only what overlayd alone needs (leave.go).
package node
