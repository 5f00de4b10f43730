// Package status holds what a running daemon reports about itself: values with JSON tags, and the HTTP
// handler of its health. Fields may be added. Existing fields keep their name and meaning as
// long as [Version] is the same.
//
// Every field of [Network] has one source:
//
//	session_start, mode, vni, port, underlay        node.Session, which does not change while it runs
//	sessions                                        node.Network
//	ready, ready_since, err, err_since              the events of a session: node.snapshot
//	mtu, lease, lease_fault, sync_fault, peers,     the controller of the session: controller.Status, published
//	rejected, bad, control                          after every Sync and every fault
//	state "direct" of a peer                        the Wanted that the dataplane was given last
//	state "failed" of a peer                        the dataplane's own Status: it tries again by itself
//	probes                                          the prober of the session: package probe
//	name of a peer                                  the lease that has the subnet, as its store tells
//	offloads, source_check                          the userspace dataplane, and the flags
//	parts                                           each part's own Status, in the order of the overlay
//	repairs                                         the parts' Status, summed up over the sessions: Totals
//	counters                                        the dataplane's Stats, and so is what counts in control: likewise
//	shared_port                                     the Stats of the UDP port that the dataplane shares: sharedport.Port
//	store                                           the store's own Status, if it has one
//	certificates                                    the files that the flags name: node.Config.Certificates
//	etcd                                            the process of the embedded etcd, if this daemon runs one: node.Server
package status
