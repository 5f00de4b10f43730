// Package cni is overlayd's CNI plugin. It gives pods their interface and addresses: it runs the plugins bridge and host-local
// with the values of subnet.env. Config keys, state directory and file format are those of flannel's plugin (read in
// flannel-io/cni-plugin v1.9 and run as containernetworking/plugins v0.9.1), so that each plugin can delete the pods of the other.
//
// # How an ADD goes
//
//	config.go    the config from the runtime, checked                        parse
//	env.go       subnet.env, checked: networks, subnets, MTU, ipMasq         readEnv
//	render.go    both together are the config of the delegate                config.render
//	moved.go     whether the bridge may get another address                  object.moves
//	delegate.go  the newest CNI version that caller and delegates speak      delegate.speak
//	saved.go     the delegate's config is saved for DEL, CHECK and GC        store.save
//	delegate.go  the delegate runs; its result is printed in the caller's version
//
// DEL reads only the saved config, not the network's, because that may have changed meanwhile. GC does a DEL for each
// saved config whose attachment the runtime no longer has (gc.go). STATUS asks the daemon (status.go).
//
// # What is on standard output
//
// One JSON object: the result, or one error (CNI specification 1.1, section 5). Everything else goes to
// standard error, which runtimes log.
package cni
