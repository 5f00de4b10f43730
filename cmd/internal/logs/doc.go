// Package logs makes the log of the process: text or JSON, for a terminal or with the priorities that
// the journal of systemd reads.
package logs
