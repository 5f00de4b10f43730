// Package kube is control.Store on the Kubernetes API, in the layout of flannel
// (v0.28.9 pkg/subnet/kube), so that overlayd and flanneld share one cluster.
//
// Each Node is a lease: its subnets are the Node's podCIDRs, which Kubernetes gives
// out and which nobody can acquire, lose or let expire, and what peers need to know is
// in its annotations, below a prefix p (flannel.alpha.coreos.com):
//
//	p/kube-subnet-manager = "true"                 the Node has a lease
//	p/backend-type        = "vxlan"
//	p/backend-data        = {"VNI":1,"VtepMAC":"0e:2a:f1:00:00:01"}
//	p/public-ip           = "192.0.2.1"
//	p/backend-v6-data, p/public-ipv6               the same of the IPv6 VTEP
//	p/overlayd-node       = {"v":1,"src4":"10.0.0.5"}   control.NodeFacts; no flanneld writes or reads it
//
// Nodes of the backend host-gw say so, and have the data null; those of alloc have an empty type.
//
// An operator may set p/node-public-ip and p/node-public-ipv6 (see Store.PublicIPs),
// and p/public-ip-overwrite and p/public-ipv6-overwrite, which replace what is published.
// A Node without kube-subnet-manager is ignored.
//
// # Writing
//
// A Node is patched, through its status subresource as flannel does it, only if it
// differs from what it should say, and with its UID, so that a Node which was deleted and
// made again is never given what was meant for the earlier one. Annotations of others
// stay. In a dual-stack network, data with a blank in front say the same: flanneld notices a
// change of one family only if the other one's annotations differ, too. Acquire, Renew and MarkReady all
// look at the whole; the watch has Renew called when the own Node does not say what it should.
//
// There are no clones as in etcd: who a host is says its Node name, not its node file. Two hosts with one Node name are for kubelet and kubeadm
// to refuse. Their overlayds publish on one Node in turn, and each logs the address of the other.
//
// # Reading
//
// A watch is client-go's Reflector over all Nodes into a table that keeps of each Node
// only its lease: streamed, or listed page by page from servers that cannot stream.
// It resumes after a disconnect where it was, and begins again with a Reset if the
// server has forgotten that (410 Gone) or, its etcd wiped or restored, has not come so
// far. The table sends the present state of what has changed since it last sent, so that
// no queue can overflow and a slow receiver costs nothing.
//
// CreateRevision is the Node's creation time in seconds: resourceVersions order writes
// and not Nodes, and nobody but the API server sets that time. Two Nodes that claim the
// same podCIDR, which Kubernetes itself never gives out twice, are one lease, the older Node's;
// at the same second the one with the lower name.
package kube
