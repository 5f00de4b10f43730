// Package rights handles the Linux capabilities of this process (capabilities(7)).
//
// Once a daemon is set up, it keeps the capabilities that it still needs, in all threads, and gives up the others for good. It removes
// them from its bounding and ambient sets, too, and sets no_new_privs, so that neither it nor a program that it runs gets one back.
//
//	set.go     a set of capabilities, and their names
//	keep.go    gives up all but a set
//	giveup.go  the same, with log lines; which capabilities sockets and files need
//	files.go   which files this process can use without CAP_DAC_OVERRIDE
package rights
