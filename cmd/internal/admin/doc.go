// Package admin is the admin socket of a daemon: a Unix socket beside its subnet file that speaks HTTP, and the
// client of it, which `overlayd status` and the other commands use.
//
//	GET /v1/status     status.Daemon: verdict, warnings, and each network
//	GET /v1/peers      status.PeerList: the peers alone; ?peer=X finds some by name, subnet or address
//	GET /v1/checks     what overlayd doctor finds; ?peer=X looks at one peer
//	GET /readyz        200 or 503, and with ?verbose a line for each check: the CNI plugin asks
//	GET /v1/capture    packets, and what became of them (package stream), until the client wants no more: for root
//	GET /v1/loglevel   debug, info, warn or error
//	PUT /v1/loglevel   the same, to set it: for root
//	GET /v1/guard      on or off: whether the rules that check where packets come from are switched on
//	PUT /v1/guard      the same, to switch them: for root
//	GET /debug/pprof/  profiles: for root, and never the command line
//
// The JSON is versioned: fields may be added, and "v" becomes another number if one is removed or changes its
// meaning. Nothing that the socket tells is a secret.
//
//	curl --unix-socket /run/flannel/subnet.env.sock http://overlayd/v1/status
//
// # Who may ask
//
// The mode of the socket is 0660: its owner is the user of the daemon, and its group that of --admin-group. The kernel
// lets nobody else connect. A route that is for root asks the kernel who has connected (SO_PEERCRED).
//
// # How to add a route
//
// Write an http.Handler, and add a line to the list in cmd/overlayd/admin.go. An answer that takes longer than
// [WriteTimeout] sets its own deadline by http.NewResponseController(w).SetWriteDeadline.
//
// # What one client can do to another
//
// Nothing. There are at most maxConns connections; whoever comes then takes the place of the oldest one of the user that
// has most (conns.go). A request has a header and a body of bounded size, and bounded time for each part (server.go).
//
// # How long the socket is there
//
// From the claim of the subnet file to the end of the daemon. It is made under another name and renamed: what stands at
// the path listens already. It takes the place of one that a crash has left and of that of a daemon which hands over,
// and of no other (socket.go). If somebody removes it, it is there again within keepPeriod.
package admin
