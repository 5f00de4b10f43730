// Package cni is overlayd's CNI plugin: it gives pods their interface and addresses by the bridge plugin and host-local,
// with what subnet.env says. It has the config keys, the state directory and the file format of flannel's plugin (read in
// flannel-io/cni-plugin v1.9 and run as containernetworking/plugins v0.9.1), so that either deletes the pods of the other.
//
// # How an ADD goes
//
//	config.go    the config from the runtime, checked                        parse
//	env.go       subnet.env, checked: networks, subnets, MTU, ipMasq         readEnv
//	render.go    both together are the config of the delegate                config.render
//	delegate.go  the newest CNI version that caller and delegates speak      delegate.speak
//	saved.go     the delegate's config is saved for DEL, CHECK and GC        store.save
//	delegate.go  the delegate runs; its result is printed in the caller's version
//
// DEL reads what is saved, and nothing of the network's config: that may have changed meanwhile. GC is such a DEL for each
// saved config whose attachment the runtime no longer has (gc.go). STATUS asks the daemon (status.go).
//
// # What is on standard output
//
// One JSON object: the result, or one error (CNI specification 1.1, section 5). What else there is to say goes to
// standard error, where runtimes log it.
package cni
