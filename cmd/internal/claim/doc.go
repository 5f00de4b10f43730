// Package claim keeps two daemons from serving the same subnet file or device. A claim is a lock on a file that only the
// daemon's user can open (lock.go). It ends with the process. A device has one such file for each network
// namespace and VNI (device.go).
package claim
