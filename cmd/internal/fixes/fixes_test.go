package fixes

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/cmd/internal/child"
	"github.com/overlayd/overlayd/cmd/internal/etcdchild"
	"github.com/overlayd/overlayd/cmd/internal/fit"
	"github.com/overlayd/overlayd/cmd/internal/flags"
	"github.com/overlayd/overlayd/cmd/internal/node"
	"github.com/overlayd/overlayd/cmd/internal/nodefile"
	"github.com/overlayd/overlayd/cmd/internal/overlay"
	"github.com/overlayd/overlayd/cmd/internal/parts"
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

// Errors from below name no flags: what to do about them is said here.
func TestFixesNameFlags(t *testing.T) {
	tried := func(fields ...underlay.Field) (all []*underlay.OptionError) {
		for _, f := range fields {
			all = append(all, &underlay.OptionError{Field: f, Value: "x", Err: errors.New("no such interface")})
		}
		return all
	}
	for _, tc := range []struct {
		err  error
		want string
	}{
		{errors.New("other"), ""},
		{&underlay.SelectError{Tried: tried(""), Unnamed: true}, "choose one with --iface, --iface-regex or --iface-can-reach"},
		{&underlay.SelectError{Tried: tried(underlay.FieldIface)}, "correct --iface"},
		{&underlay.SelectError{Tried: tried(underlay.FieldIface, underlay.FieldIface, underlay.FieldIfaceRegex, underlay.FieldCanReach)},
			"correct --iface, --iface-regex, --iface-can-reach"},
		{&underlay.SelectError{Tried: tried(underlay.FieldPublicIP, underlay.FieldPublicIPv6)}, "correct --public-ip, --public-ipv6"},
		{masq.ErrNoIptables, "as the error tells, or do without rules: --iptables-forward-rules=false, and no --ip-masq"},
		{kernel.ErrPermission, "run overlayd as root; in a container: docker run --cap-add NET_ADMIN"},
		{unix.EPERM, "run overlayd as root; in a container: docker run --cap-add NET_ADMIN"},
		{&overlay.PartError{Part: parts.Rules, Err: errors.New("broken")}, "as the error tells, or do without rules: --iptables-forward-rules=false"},
		{&overlay.PartError{Part: "other", Err: errors.New("broken")}, ""},
		{fit.ErrKernelOnly, "--dataplane=kernel"},
		{fmt.Errorf("open dataplane: %w", os.NewSyscallError("socket", unix.EMFILE)), "raise the limit of open files of this process to 1024 or more: LimitNOFILE= of its systemd unit, docker run --ulimit nofile=, or ulimit -Hn"},
		{fmt.Errorf("open dataplane: %w", unix.ENFILE), "raise the limit of open files of this host: sysctl fs.file-max"},
		{&overlay.PartError{Part: parts.Rules, Err: fmt.Errorf("%w: %w", masq.ErrNoIptables, unix.EMFILE)}, dataplane.FixOf(unix.EMFILE)},
		{errors.Join(errors.New("other"), fmt.Errorf("set: %w", dataplane.WithFix(unix.EPERM, "sysctl -w x=1"))), "sysctl -w x=1"},
		{fmt.Errorf("open: %w", kernel.ErrUnsupported), "modprobe vxlan on the host, or --dataplane=userspace"},
		{fmt.Errorf("no direct route to 2 subnets: %w", dataplane.ErrRouteTaken), dataplane.FixOf(dataplane.ErrRouteTaken)},
		{fmt.Errorf("etcd: %w", control.ErrUntrusted), "--join-file with the file that overlayd pki join-file made for this host, or --etcd-cafile with the authority of that etcd"},
		{fmt.Errorf("etcd: %w", control.ErrOtherName), "a name or address of the certificate of that etcd in --etcd-endpoints; with the join file of an embedded etcd its address does not matter"},
		{fmt.Errorf("etcd: %w", control.ErrNotValidNow), "renew the certificate of that etcd, or correct the clock of this host"},
		{fmt.Errorf("etcd: %w", control.ErrScheme), "see whether etcd runs there; https:// in --etcd-endpoints if it speaks TLS, with --join-file or --etcd-cafile, else http://"},
		{&nodefile.RunningError{SubnetFile: "x", PID: 7}, "stop it first, or give this daemon a --subnet-file, prefix and VNI of its own"},
		{userspace.ErrNoTUN, "docker run --device /dev/net/tun"},
		{fmt.Errorf("open /dev/net/tun: %w (%w)", userspace.ErrNoTUN, unix.EPERM), "docker run --device /dev/net/tun"},
		{fmt.Errorf("open /dev/net/tun: %w (%w)", userspace.ErrNoTUN, unix.EACCES), "run overlayd as root; in a container: docker run --cap-add NET_ADMIN"},
		{userspace.ErrNoModule, "modprobe tun"},
		{fmt.Errorf("%w: was eth0, is eth1", node.ErrMoved), "nothing, if it is meant; else --iface with the interface that is to carry the overlay whatever the routes are"},
		{userspace.ErrPermission, "run overlayd as root; in a container: docker run --cap-add NET_ADMIN"},
		{userspace.ErrDeviceBusy, "stop that process, such as another overlayd: as root, grep -s iff: /proc/[0-9]*/fdinfo/* shows which process has which device"},
		{&device.NameTakenError{Name: "flannel.1", Type: "bridge"}, "ip link del flannel.1"},
		{fmt.Errorf("listen: %w", &tcpport.TakenError{Port: 8081}), "stop that program, which ss -Htanp 'sport = :8081' names, or choose another port"},
		{&udp.PortTakenError{Local: netip.MustParseAddrPort("192.0.2.1:8472"), Err: unix.EADDRINUSE}, "ss -lunp 'sport = :8472' names the program"},
		{&udp.PortTakenError{Devices: []string{"flannel.9"}, Err: unix.EADDRINUSE}, "if no other daemon needs the device: ip link del flannel.9, or overlayd cleanup"},
		{&udp.VRFError{Device: "eth0", VRF: "blue", Err: unix.EADDRNOTAVAIL}, "use --dataplane=kernel, or an --iface that is in no VRF"},
	} {
		if got := Of(nil, "", fmt.Errorf("open: %w", tc.err)); got != tc.want {
			t.Errorf("%v: got %q, want %q", tc.err, got, tc.want)
		}
	}
}

// TestFixesOfEtcd: each reason has a remedy.
func TestFixesOfEtcd(t *testing.T) {
	for reason, want := range map[string]string{
		etcdchild.Full: "make room on the disk of --etcd-data-dir /d", etcdchild.ReadOnly: "remount,rw", etcdchild.Denied: "the right to write",
		etcdchild.InUse: "another --etcd-data-dir", etcdchild.Listen: "--etcd-listen-client-url", etcdchild.Members: "etcdctl member remove",
		etcdchild.Aside: "remove these directories", etcdchild.Damaged: "--etcd-embedded-rebuild", child.ReasonLimits: "open files", child.ReasonCrash: "--etcd-embedded-rebuild",
		etcdchild.Gone: "make reservations again", child.ReasonLate: "look at the disk of --etcd-data-dir /d",
	} {
		o := &flags.Flags{Etcd: flags.Etcd{DataDir: "/d"}}
		if got := Of(o, "", &child.Error{Reason: reason}); !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", reason, got, want)
		}
	}
}

// TestFixOfEntries: what to do about an entry of the store fits the store, and no command has a key that somebody else has chosen.
func TestFixOfEntries(t *testing.T) {
	contest := control.WithReason(control.ReasonContested, errors.New("older"))
	vni := control.WithReason(control.ReasonVNI, errors.New("VNI"))
	const behind = "see on that host why it has another network config: overlayd status, and its log; only if it is gone for good, "
	for _, tc := range []struct {
		kube bool
		err  control.EntryError
		want string
	}{
		{false, control.EntryError{Key: "10.5.2.0-24&fd00::-64", Name: "n2", Err: os.ErrPermission}, "overlayd lease list shows it; overlayd lease revoke '10.5.2.0-24&fd00::-64' removes it"},
		{false, control.EntryError{Key: "10.5.2.0-24", Err: contest}, "overlayd lease list shows it; overlayd lease revoke 10.5.2.0-24 removes it"},
		{false, control.EntryError{Err: errors.New("key \"; rm -rf /\"")}, "overlayd lease list shows it; etcdctl del removes its key"},
		{false, control.EntryError{Key: "10.5.2.0-24", Err: vni}, behind + "overlayd lease revoke 10.5.2.0-24"},
		{false, control.EntryError{Key: "10.6.2.0-24", Err: control.WithReason(control.ReasonOutside, errors.New("10.6.2.0/24"))}, behind + "overlayd lease revoke 10.6.2.0-24"},
		{true, control.EntryError{Name: "n2", Err: vni}, behind + "kubectl delete node n2"},
		{true, control.EntryError{Key: "10.5.2.0-24", Name: "n2", Err: errors.New("podCIDR")}, "kubectl describe node n2 shows its annotations and podCIDR: correct them, or delete that Node"},
		{true, control.EntryError{Key: "10.5.2.0-24", Name: "thief", Err: contest}, "kubectl delete node thief, or give this host another podCIDR: delete its own Node and restart its kubelet"},
		{true, control.EntryError{Name: "n2", Err: control.WithReason(control.ReasonNoCommonFamily, errors.New("IPv6"))}, "give this node an address of the other family on the underlay, or run overlayd there"},
	} {
		o := &flags.Flags{}
		o.Kube.Enabled = tc.kube
		if got := Of(o, "", &tc.err); got != tc.want {
			t.Errorf("kube %t, %+v: %q, want %q", tc.kube, tc.err, got, tc.want)
		}
	}
}
