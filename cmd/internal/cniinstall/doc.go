// Package cniinstall puts overlayd's CNI plugin, and a config that names it, where a container runtime looks for them.
//
// The plugin comes first, and the config when pods can be made: when there is a whole subnet.env, and the overlayd that
// writes it, if one answers, is ready. A node whose config comes earlier is ready too early, and its first pods fail with
// "open /run/flannel/subnet.env: no such file or directory" (flannel issue 2437). What is installed stays when the daemon
// ends: it goes on to serve pods that there are.
//
// Every file is put in its place by a rename: a runtime finds the old one or the new one, and a plugin that is running can be
// replaced.
package cniinstall
