// Package fixes says what to do about an error, in terms of this program's flags and commands. Below cmd/overlayd
// only this package and package flags name those.
package fixes

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/cmd/internal/admin"
	"github.com/overlayd/overlayd/cmd/internal/child"
	"github.com/overlayd/overlayd/cmd/internal/etcdchild"
	"github.com/overlayd/overlayd/cmd/internal/fit"
	"github.com/overlayd/overlayd/cmd/internal/flags"
	"github.com/overlayd/overlayd/cmd/internal/leftovers"
	"github.com/overlayd/overlayd/cmd/internal/node"
	"github.com/overlayd/overlayd/cmd/internal/nodefile"
	"github.com/overlayd/overlayd/cmd/internal/overlay"
	"github.com/overlayd/overlayd/cmd/internal/parts"
	"github.com/overlayd/overlayd/cmd/internal/pki"
	"github.com/overlayd/overlayd/cmd/internal/probe"
	"github.com/overlayd/overlayd/cmd/internal/tap"
	"github.com/overlayd/overlayd/cmd/internal/tcpport"
	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/device"
	"github.com/overlayd/overlayd/dataplane/kernel"
	"github.com/overlayd/overlayd/dataplane/masq"
	"github.com/overlayd/overlayd/dataplane/udp"
	"github.com/overlayd/overlayd/dataplane/underlay"
	"github.com/overlayd/overlayd/dataplane/userspace"
)

// Of returns what to do about an error. It is empty if the error says enough. o is nil for
// commands that do not have the daemon's flags.
func Of(o *flags.Flags, network string, err error) string {
	if errors.Is(err, control.ErrNoNetwork) && o != nil && !o.Kube.Enabled {
		return fmt.Sprintf("put a network config under %s/config, or give --network to one daemon", o.Etcd.PrefixOf(network))
	}
	if errors.Is(err, userspace.ErrNoTUN) && errors.Is(err, unix.EACCES) { // its mode, and not a container, is in the way
		return permission
	}
	if fix := dataplane.FixOf(err); fix != "" {
		return fix
	}
	if e := new(control.EntryError); errors.As(err, &e) && o != nil {
		return ofEntry(o, e)
	}
	for _, f := range []struct {
		is  error
		fix string
	}{
		{control.ErrCloned, "on the host that is the copy: remove <subnet file>.node, and give the host an address of its own"},
		{control.ErrUntrusted, "--join-file with the file that overlayd pki join-file made for this host, or --etcd-cafile with the authority of that etcd"},
		{control.ErrOtherName, "a name or address of the certificate of that etcd in --etcd-endpoints; with the join file of an embedded etcd its address does not matter"},
		{control.ErrNotValidNow, "renew the certificate of that etcd, or correct the clock of this host"},
		{control.ErrNoAccess, "--join-file with a file that overlayd pki join-file has made for this host, or --etcd-certfile and --etcd-keyfile that this etcd takes"},
		{control.ErrScheme, "see whether etcd runs there; https:// in --etcd-endpoints if it speaks TLS, with --join-file or --etcd-cafile, else http://"},
		{admin.ErrNoDaemon, "start overlayd, or say which one is meant: --subnet-file, or --subnet-dir for one of several networks"},
		{admin.ErrNoRight, "run this as root, or as a member of the group that the daemon is given by --admin-group"},
		{probe.ErrNoSocket, "run this as root, or let your group have such sockets: sysctl net.ipv4.ping_group_range"},
		{admin.ErrForRoot, "run this as root"},
		{tap.ErrNoProgram, "install overlayd-capture, which comes with overlayd: make build makes bin/overlayd-capture"},
		{admin.ErrVersion, "restart the daemon with this version, or run the overlayd that it is of: /proc/<pid>/exe"},
		{admin.ErrAnswer, "try again; if it stays so, restart the daemon, and look at its log"},
		{fit.ErrKernelOnly, "--dataplane=kernel"},
		{masq.ErrNoIptables, "as the error tells, or do without rules: --iptables-forward-rules=false, and no --ip-masq"},
		{masq.ErrLegacyHidden, "set EnableNFTables to true in the network config, or install the iptables of nf_tables"},
		{masq.ErrLockFile, "set EnableNFTables to true in the network config, or give the daemon the variable XTABLES_LOCKFILE with a file of this user's"},
		{nodefile.ErrOtherPIDNamespace, "run overlayd drain in that namespace, for example with docker exec"},
		{nodefile.ErrTwoDaemons, "choose one with --networks, or for overlayd lease with --subnet-file"},
		{node.ErrMoved, "nothing, if it is meant; else --iface with the interface that is to carry the overlay whatever the routes are"},
		{node.ErrNotHandedOver, "run overlayd drain --to=kernel again, with the daemon's flags"},
		{node.ErrNotGivenBack, "run overlayd drain again, with the daemon's flags"},
		{node.ErrStoreAway, "bring the store back, or stop the daemon with SIGTERM: then it keeps its lease, until that ends"},
		{node.ErrAliveElsewhere, "drain that daemon with its own --subnet-file"},
		{leftovers.ErrFlanneldRuns, "stop flanneld first, or run overlayd cleanup, which leaves flanneld what is flanneld's"},
		{userspace.ErrNoTUN, "docker run --device /dev/net/tun"},
		{userspace.ErrNoModule, "modprobe tun"},
		{userspace.ErrPermission, permission},
		{kernel.ErrPermission, permission},
		{kernel.ErrUnsupported, "modprobe vxlan on the host, or --dataplane=userspace"},
		{os.ErrPermission, permission},
		{userspace.ErrDeviceBusy, "stop that process, such as another overlayd: as root, grep -s iff: /proc/[0-9]*/fdinfo/* shows which process has which device"},
	} {
		if errors.Is(err, f.is) {
			return f.fix
		}
	}
	if e := new(child.Error); errors.As(err, &e) && o != nil {
		return ofEtcd(&o.Etcd, e)
	}
	if other := new(nodefile.RunningError); errors.As(err, &other) {
		if other.Ends {
			return "try again in a moment: it was killed, and the kernel closes its files"
		}
		return "stop it first, or give this daemon a --subnet-file, prefix and VNI of its own"
	}
	if s := new(underlay.SelectError); errors.As(err, &s) {
		return ofUnderlay(s)
	}
	if taken := new(udp.PortTakenError); errors.As(err, &taken) {
		return ofPort(taken)
	}
	if in := new(udp.VRFError); errors.As(err, &in) {
		return "use --dataplane=kernel, or an --iface that is in no VRF"
	}
	if taken := new(tcpport.TakenError); errors.As(err, &taken) {
		return fmt.Sprintf("stop that program, which ss -Htanp 'sport = :%d' names, or choose another port", taken.Port)
	}
	if taken := new(device.NameTakenError); errors.As(err, &taken) {
		return "ip link del " + taken.Name
	}
	if s := new(userspace.SourceError); errors.As(err, &s) {
		return ofSource(s)
	}
	if p := new(overlay.PartError); errors.As(err, &p) && p.Part == parts.Rules {
		return "as the error tells, or do without rules: --iptables-forward-rules=false"
	}
	return ""
}

// ofEntry says how to put right an entry of the store that is not used. Whoever writes the entry chooses its key: no command has
// one that does not say subnets. A subnet instead of the key could be another entry's too, which is used.
func ofEntry(o *flags.Flags, e *control.EntryError) string {
	const behind = "see on that host why it has another network config: overlayd status, and its log; only if it is gone for good, "
	reason := control.Reason(e)
	contested, config := reason == control.ReasonContested, reason == control.ReasonVNI || reason == control.ReasonBackendType
	switch {
	case reason == control.ReasonNoCommonFamily:
		return "give this node an address of the other family on the underlay, or run overlayd there"
	case o.Kube.Enabled && contested:
		return fmt.Sprintf("kubectl delete node %s, or give this host another podCIDR: delete its own Node and restart its kubelet", e.Name)
	case o.Kube.Enabled && config:
		return behind + "kubectl delete node " + e.Name
	case o.Kube.Enabled: // podCIDRs are not overlayd's
		return fmt.Sprintf("kubectl describe node %s shows its annotations and podCIDR: correct them, or delete that Node", e.Name)
	case e.Key == "":
		return "overlayd lease list shows it; etcdctl del removes its key"
	}
	key := e.Key
	if strings.Contains(key, "&") { // of the shell
		key = "'" + key + "'"
	}
	if config || reason == control.ReasonOutside || reason == control.ReasonFamily {
		return behind + "overlayd lease revoke " + key
	}
	return fmt.Sprintf("overlayd lease list shows it; overlayd lease revoke %s removes it", key)
}

// ofEtcd says what brings the embedded etcd back.
func ofEtcd(o *flags.Etcd, err *child.Error) string {
	switch err.Reason {
	case etcdchild.Full:
		return "make room on the disk of --etcd-data-dir " + o.DataDir
	case etcdchild.ReadOnly:
		return "make --etcd-data-dir writable: mount -o remount,rw, once the disk is sound: " + o.DataDir
	case etcdchild.Denied:
		return "give this user the right to write --etcd-data-dir " + o.DataDir
	case etcdchild.InUse:
		return "stop that process, or give another --etcd-data-dir than " + o.DataDir
	case child.ReasonLimits:
		return "raise the limits of the daemon, as of its systemd unit or container: memory, threads, open files, size of files"
	case child.ReasonLate:
		return "look at the disk of --etcd-data-dir " + o.DataDir + ": it may not answer"
	case etcdchild.Listen:
		return "give another address by --etcd-listen-client-url, or stop the process that has it"
	case etcdchild.Members:
		return "etcdctl member remove, then member add on one of the others: this member gets its data from them"
	case etcdchild.PKI:
		return "put back what was in --pki-dir " + o.PKIDir + ", or make another authority by overlayd pki init, and a join file for each host"
	case etcdchild.Gone:
		return "make reservations again, and the network config unless a daemon has it by --network; every node puts its lease back"
	case etcdchild.Aside:
		return "look at the disk, and remove these directories"
	case etcdchild.Damaged, child.ReasonCrash:
		if o.Rebuild {
			return ""
		}
		return "start the daemon with --etcd-embedded-rebuild: it moves the data aside, and every node puts its lease back"
	}
	return ""
}

// OfUsage is what to do about a wrong flag or file, if that is more than to look at the flags.
func OfUsage(err error) string {
	switch {
	case errors.Is(err, flags.ErrExposed):
		return "overlayd pki init, and https:// in --etcd-listen-client-url; or --etcd-embedded-insecure, if only hosts of this cluster reach that address"
	case errors.Is(err, pki.ErrNone):
		return "overlayd pki init"
	case errors.Is(err, pki.ErrExists):
		return "overlayd pki rotate replaces it"
	case errors.Is(err, pki.ErrRotating):
		return "give every host a file of overlayd pki join-file, then overlayd pki rotate --finish"
	case errors.Is(err, pki.ErrNotRotating):
		return "overlayd pki rotate makes it"
	}
	return ""
}

// permission gives this process the right to configure the network.
const permission = "run overlayd as root; in a container: docker run --cap-add NET_ADMIN"

// ofPort names the program or the device that has the port.
func ofPort(err *udp.PortTakenError) string {
	if len(err.Devices) == 0 {
		return fmt.Sprintf("ss -lunp 'sport = :%d' names the program", err.Local.Port())
	}
	return fmt.Sprintf("if no other daemon needs the device: ip link del %s, or overlayd cleanup", err.Devices[0])
}

// ofUnderlay names the flags that led to no interface, or those that name one.
func ofUnderlay(err *underlay.SelectError) string {
	if err.Unnamed {
		return "choose one with --iface, --iface-regex or --iface-can-reach"
	}
	var flags []string
	for _, t := range err.Tried {
		if name := string(t.Field); !slices.Contains(flags, name) {
			flags = append(flags, name)
		}
	}
	return "correct " + strings.Join(flags, ", ")
}

// ofSource says how to let in packets that come from another address than the peer's.
func ofSource(err *userspace.SourceError) string {
	if err.Sender.IsValid() || !err.Peer.IsValid() {
		return ""
	}
	return fmt.Sprintf("if that address is right: run overlayd on %s too, or --source-check=inner --peer-cidr=%s, and --peer-cidr for the public IPs of all peers",
		err.Peer, netip.PrefixFrom(err.Outer, err.Outer.BitLen()))
}
