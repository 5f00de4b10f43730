// Package claim keeps two daemons from serving one thing: a claim is a lock on a file that only the
// daemon's user can open (lock.go), and ends with the process. A device has a file for each network
// namespace and VNI (device.go).
package claim
