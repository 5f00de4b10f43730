// Package tap lets root watch the packets of the daemon on this host, and what became of them. It has both ends of
// GET /v1/capture:
//
//   - serve.go, session.go: the daemon's. Workers copy packets to rings (dataplane/capture), and a session moves them from
//     there to the client. A worker never waits: what a client does not read in time is lost to it, and counted
//   - run.go: the client's. It gives the stream as it comes to the standard input of overlayd-capture, a program of its own
//     that decodes packets (cmd/overlayd-capture)
//
// A client that wants no more closes its half of the connection: it still gets what was captured until then, and how
// many packets were lost. One that is gone, or reads nothing for writePatience, is forgotten.
package tap
