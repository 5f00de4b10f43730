// Package control decides who has which subnet: it keeps this node's lease, watches
// everybody else's, and tells the dataplane what to make true.
package control
