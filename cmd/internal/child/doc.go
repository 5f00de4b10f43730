// Package child runs a part of overlayd in a process of its own: this program again, with a hidden
// subcommand. [Process] is the daemon's end. It starts the child, starts another one when that has ended,
// and carries what it logs into the daemon's log. [Serve] is the child's end.
//
// The standard input of the child is a pipe that the daemon holds open and never writes to. When the pipe
// closes, the child ends: the daemon stops it so, and if somebody kills the daemon, the kernel closes the pipe.
// The child ignores the signals that stop a daemon. A service manager sends those to all its processes at once,
// and the daemon needs the child until it has given back what it has there.
//
// The standard output of the child has a line of JSON for each [event] and for each record of its log. On
// its standard error is what Go prints of a panic.
package child
