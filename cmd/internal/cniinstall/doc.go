// Package cniinstall puts overlayd's CNI plugin, and a config that names it, where a container runtime looks for them.
//
// It installs the plugin first. It installs the config when pods can be made: subnet.env is complete, and the overlayd that
// writes it, if one runs, is ready. If the config came earlier, the node would be ready too early, and its first pods would fail with
// "open /run/flannel/subnet.env: no such file or directory" (flannel issue 2437). Both stay when the daemon
// ends, to serve the existing pods.
//
// Every file is put in place by a rename. So a runtime finds either the old file or the new one, and a running plugin can be
// replaced.
package cniinstall
