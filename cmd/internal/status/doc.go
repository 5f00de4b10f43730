// Package status holds what a running daemon says of itself: values with JSON tags, and the HTTP
// handler of its health. Fields may be added; those that are there keep their name and meaning as
// long as [Version] is the same.
//
// Every field of [Network] has one source:
//
//	session_start, mode, vni, port, mtu, underlay   the session: node.Session
//	lease, peers, rejected, bad                     its controller: control.Status
//	state "direct" of a peer                        the direct routes, as the overlay last synced them
//	parts                                           each part's own Status, in the order of the overlay
//	counters                                        the dataplane's Stats
//	store                                           the store's own Status, if it has one
//	ready, ready_since                              the controller's Ready, kept by the session
//	err                                             what ended the last session
package status
