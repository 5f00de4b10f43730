// Package kube is control.Store on the Kubernetes API, in the layout of flannel
// (v0.28.9 pkg/subnet/kube), so that overlayd and flanneld share one cluster.
//
// Each Node is a lease. Its subnets are the Node's podCIDRs. Kubernetes gives those out;
// nobody can acquire or lose one, and none expires. What peers need to know is in the
// Node's annotations, below a prefix p (flannel.alpha.coreos.com):
//
//	p/kube-subnet-manager = "true"                 the Node has a lease
//	p/backend-type        = "vxlan"
//	p/backend-data        = {"VNI":1,"VtepMAC":"0e:2a:f1:00:00:01"}
//	p/public-ip           = "192.0.2.1"
//	p/backend-v6-data, p/public-ipv6               the same of the IPv6 VTEP
//	p/overlayd-node       = {"v":1,"src4":"10.0.0.5"}   control.NodeFacts, perhaps with "userspace":true; no flanneld writes or reads it
//
// Nodes with the backend host-gw have that type and the data null; those with alloc have an empty type.
//
// An operator may set p/node-public-ip and p/node-public-ipv6 (see Store.PublicIPs),
// and p/public-ip-overwrite and p/public-ipv6-overwrite, which replace what is published.
// A Node without kube-subnet-manager is ignored.
//
// # Writing
//
// A Node is patched through its status subresource, as flannel does, and only if it
// differs from what it should say. The patch has the Node's UID, so that a Node which was deleted and
// made again never gets what was meant for the earlier one. Annotations of others
// stay. In a dual-stack network flanneld notices a change of one family only if the other family's annotations
// change, too; therefore a blank is put in front of their data, which means the same. Acquire, Renew and MarkReady all
// check everything. The watch has Renew called when the own Node does not say what it should.
//
// There are no clones as in etcd: the Node name identifies a host, not its node file. kubelet and kubeadm have to refuse two hosts
// with one Node name. Their overlayds publish on one Node in turn, and each logs the address of the other.
//
// # Reading
//
// A watch is client-go's Reflector over all Nodes into a table that keeps of each Node
// only its lease: streamed, or listed page by page from servers that cannot stream.
// After a disconnect it resumes where it was. It begins again with a Reset if the
// server has forgotten that revision (410 Gone), or has not reached it because its etcd was
// wiped or restored. The table sends the present state of each Node that has changed since it
// last sent. So no queue can overflow, and a slow receiver costs nothing.
//
// CreateRevision is the Node's creation time in seconds, which only the API server sets:
// resourceVersions order writes, not Nodes. If two Nodes claim the same podCIDR, which
// Kubernetes itself never gives out twice, the older Node has the lease, if it can be used; within the same
// second the Node with the lower name. The leases of the others have a control.Lease.Claimant.
package kube
