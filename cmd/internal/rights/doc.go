// Package rights is what this process may do beyond what its user may: Linux's capabilities (capabilities(7)).
//
// A daemon that is set up keeps those that it needs from then on, in all threads, and gives up the others for good: also in its
// bounding and ambient sets, and with no_new_privs, so that neither it nor a program that it runs gets one back.
//
//	set.go     a set of capabilities, and what they are called
//	keep.go    it gives up all but a set
//	giveup.go  the same with lines in the log, and what sockets and files take
//	files.go   which files this process can use without the right to use any
package rights
