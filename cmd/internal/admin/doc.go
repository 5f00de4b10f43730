// Package admin is the admin socket of a daemon: a Unix socket beside its subnet file that speaks HTTP, and the
// client of it, which `overlayd status` and the other commands use.
//
//	GET /v1/status     status.Daemon: verdict, warnings, and each network
//	GET /v1/peers      status.PeerList: the peers alone; ?peer=X finds some by name, subnet or address
//	GET /v1/checks     what overlayd doctor finds; ?peer=X looks at one peer
//	GET /readyz        200 or 503, and with ?verbose a line for each check: the CNI plugin asks
//	GET /v1/capture    packets and their outcome (package stream), until the client closes: for root
//	GET /v1/loglevel   debug, info, warn or error
//	PUT /v1/loglevel   the same, to set it: for root
//	GET /v1/guard      on or off: whether the rules that check where packets come from are switched on
//	PUT /v1/guard      the same, to switch them: for root
//	GET /debug/pprof/  profiles: for root, and never the command line
//
// The JSON is versioned: fields may be added, and "v" becomes another number if one is removed or changes its
// meaning. No answer contains a secret.
//
//	curl --unix-socket /run/flannel/subnet.env.sock http://overlayd/v1/status
//
// # Who may ask
//
// The mode of the socket is 0660. Its owner is the user of the daemon, and its group that of --admin-group. The kernel
// lets nobody else connect. A route for root asks the kernel who has connected (SO_PEERCRED).
//
// # How to add a route
//
// Write an http.Handler, and add a line to the list in cmd/overlayd/admin.go. An answer that takes longer than
// [WriteTimeout] sets its own deadline by http.NewResponseController(w).SetWriteDeadline.
//
// # What one client can do to another
//
// Nothing. There are at most maxConns connections. A further one replaces the oldest connection of the user who
// has most (conns.go). The size of header and body, and the time for each part of a request, are bounded (server.go).
//
// # How long the socket is there
//
// From the claim of the subnet file to the end of the daemon. It is made under another name and then renamed, so that a socket at
// the path always listens. It replaces a socket that a crash has left, or that of a daemon that hands over,
// and no other (socket.go). If somebody removes it, it is made again within keepPeriod.
package admin
