// Package child runs a part of overlayd in a process of its own: this program again, with a hidden
// subcommand. [Process] is the daemon's end. It starts the child, starts another one when that has ended,
// and carries what it logs into the daemon's log. [Serve] is the child's end.
//
// The standard input of the child is a pipe that the daemon holds open and never writes to. When the pipe
// closes, the child ends. The daemon stops it in this way; if somebody kills the daemon, the kernel closes the pipe.
// The child ignores the signals that stop a daemon: a service manager sends them to all its processes at once,
// but the daemon needs the child until it has given back its lease.
//
// On its standard output the child writes a line of JSON for each [event] and for each record of its log. On
// its standard error Go prints a panic.
package child
