package leftovers

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/cmd/internal/claim"
	"github.com/overlayd/overlayd/cmd/internal/nodefile"
	"github.com/overlayd/overlayd/dataplane/kernel"
	"github.com/overlayd/overlayd/dataplane/masq"
	"github.com/overlayd/overlayd/dataplane/rtnl"
	"github.com/overlayd/overlayd/dataplane/subnetfile"
)

// others is what a flanneld, or whoever else was started in place of an overlayd, has made its own in the
// network namespace of the calling thread. The alias of a device proves nothing: it outlives that.
type others struct {
	networks  []netip.Prefix // of flannel's traffic rules
	flannelds []flanneld
	files     []foreignFile
}

// foreignFile is a subnet file that overlayd has not written.
type foreignFile struct {
	path     string
	subnets  []netip.Prefix // none if it has not been written yet
	networks []netip.Prefix // likewise
	mtu      int            // 0: not known
}

func readForeignFile(path, from string) (f foreignFile, err error) {
	f.path = path
	f.subnets, err = subnetfile.Read(from)
	f.networks, f.mtu = networksIn(from), mtuIn(from)
	return f, err
}

// flanneld is a running process.
type flanneld struct {
	pid         int
	foreignFile        // its path is as flanneld names it
	root        string // the path as this process can open it
	isGiven     bool   // its command line says so
	isUnsure    bool   // which file that is cannot be told for sure: this process has no right to see it
}

// has reports whether that is its subnet file.
func (f flanneld) has(file string) bool {
	_, err := os.Stat(file)
	return isSameFile(f.root, file) || f.path == file && errors.Is(err, os.ErrNotExist)
}

// findOthers finds what others have made their own. The node files tell which of subnetFiles overlayd has written.
func findOthers(subnetFiles []string, claims map[string]*nodefile.File) (o others, err error) {
	if o.networks, err = masq.FlannelNetworks(); err != nil {
		return o, err
	}
	if o.flannelds, err = findFlannelds("/proc"); err != nil {
		return o, err
	}
	for _, file := range subnetFiles {
		if claims[file].HasWritten(file) {
			continue
		}
		f, err := readForeignFile(file, file)
		if err != nil {
			return o, err
		}
		o.files = append(o.files, f)
	}
	return o, nil
}

// use returns who else uses a device and how that shows, "" if nobody does, and whether it may be a flanneld. A device that is
// not a vxlan device is a TUN of ours, which nobody else can use.
func (o others) use(l netlink.Link, addrs []netip.Addr) (use string, flanneld bool, err error) {
	if l.Type() != "vxlan" {
		return "", false, nil
	}
	var signs []string
	who := "somebody else"
	protocols, err := kernel.OthersRoutes(l.Attrs().Index)
	if err != nil {
		return "", false, err
	}
	if len(protocols) > 0 {
		flanneld = slices.Contains(protocols, "boot")
		signs = append(signs, "routes of protocol "+strings.Join(protocols, ", "))
	}
	for _, n := range o.networks {
		if slices.ContainsFunc(addrs, n.Contains) {
			who, flanneld, signs = "flanneld", true, append(signs, "traffic rules for "+n.String())
			break
		}
	}
	for _, f := range o.files {
		if isOf(f.subnets, addrs) {
			flanneld, signs = true, append(signs, "subnet file "+f.path)
		}
	}
	for _, f := range o.processes(addrs) {
		who, flanneld, signs = "flanneld", true, append(signs, fmt.Sprintf("process %d", f.pid))
	}
	if len(signs) == 0 {
		return "", false, nil
	}
	return fmt.Sprintf("%s uses it (%s)", who, strings.Join(signs, "; ")), flanneld, nil
}

// processes returns the flannelds that may use a device with these addresses.
func (o others) processes(addrs []netip.Addr) (found []flanneld) {
	for _, f := range o.flannelds {
		if len(f.subnets) == 0 || isOf(f.subnets, addrs) {
			found = append(found, f)
		}
	}
	return found
}

// needs reports whether a flanneld may need a route to a subnet.
func (o others) needs(subnet netip.Prefix) bool {
	files := slices.Clone(o.files)
	for _, f := range o.flannelds {
		if len(f.networks) == 0 {
			return true
		}
		files = append(files, f.foreignFile)
	}
	return rtnl.Inside(subnet, o.networks) || slices.ContainsFunc(files, func(f foreignFile) bool { return rtnl.Inside(subnet, f.networks) })
}

// isOf reports whether a device with these addresses is that of one of the subnets: it has the first
// address of it.
func isOf(subnets []netip.Prefix, addrs []netip.Addr) bool {
	return slices.ContainsFunc(subnets, func(s netip.Prefix) bool { return slices.Contains(addrs, s.Masked().Addr()) })
}

// mtu returns the MTU that others have written for the device with these addresses; 0: none.
func (o others) mtu(addrs []netip.Addr) (mtu int) {
	files := slices.Clone(o.files)
	for _, f := range o.flannelds {
		files = append(files, f.foreignFile)
	}
	for _, f := range files {
		if isOf(f.subnets, addrs) {
			mtu = max(mtu, f.mtu)
		}
	}
	return mtu
}

// keeps returns why a subnet file stays; "" if it is overlayd's alone.
func (o others) keeps(file string, kept []netip.Addr) string {
	for _, f := range o.flannelds {
		if f.path == file {
			return fmt.Sprintf("flanneld uses it (process %d)", f.pid)
		}
	}
	if slices.ContainsFunc(o.files, func(f foreignFile) bool { return f.path == file }) {
		return "overlayd has not written it"
	}
	if subnets, err := subnetfile.Read(file); err == nil && isOf(subnets, kept) {
		return "its subnet is that of a kept device"
	}
	return ""
}

// ErrFlanneldRuns says that what is overlayd's to give away has become flanneld's.
var ErrFlanneldRuns = errors.New("a flanneld has the lease of this host by now")

// CheckFlanneld returns [ErrFlanneldRuns] if a flanneld that runs here has this subnet file, or a subnet in one of the
// networks: then lease, device and file are no longer overlayd's to give away. One whose file cannot be told for sure counts if something
// says that it is here: hinted, see [FindBeside].
func CheckFlanneld(subnetFile string, networks []netip.Prefix, hinted bool) error {
	found, err := findFlannelds("/proc")
	for _, f := range found {
		inside := func(s netip.Prefix) bool { return slices.ContainsFunc(networks, s.Overlaps) }
		if (!f.isUnsure || f.isGiven || hinted) && (f.has(subnetFile) || slices.ContainsFunc(f.subnets, inside)) {
			return fmt.Errorf("%w (process %d)", ErrFlanneldRuns, f.pid)
		}
	}
	return err
}

// findFlannelds finds the processes of that name in the network namespace of the calling thread that are root's or
// this user's: any other user can give a process that name, and a command line of his choice. proc is where the
// process file system is mounted.
func findFlannelds(proc string) (found []flanneld, err error) {
	here, err := claim.NetNS()
	if err != nil {
		return nil, err
	}
	own, done, err := socketHere()
	if err != nil {
		return nil, err
	}
	defer done()
	names, err := filepath.Glob(filepath.Join(proc, "[0-9]*", "comm"))
	for _, name := range names {
		dir := filepath.Dir(name)
		if b, err := os.ReadFile(name); err != nil || string(b) != "flanneld\n" { // err: it has ended meanwhile
			continue
		}
		ns, err := claim.NetNSOf(filepath.Join(dir, "ns/net"))
		unknown := errors.Is(err, os.ErrPermission) // a daemon that is set up has no right to see it: it may be here
		if err != nil && !unknown || err == nil && ns != here || unknown && !lists(dir, own) || !isTrusted(dir) {
			continue
		}
		var f flanneld
		f.pid, _ = strconv.Atoi(filepath.Base(dir)) // the pattern wants digits
		args, _ := readList(dir, "cmdline")         // without them the defaults hold
		environ, err := readList(dir, "environ")
		var path string
		path, f.isGiven = subnetFileOf(args, environ)
		f.isUnsure = unknown || err != nil && !f.isGiven
		if !filepath.IsAbs(path) {
			cwd, err := os.Readlink(filepath.Join(dir, "cwd"))
			f.isUnsure = f.isUnsure || err != nil
			path = filepath.Join(cwd, path)
		}
		if f.root = filepath.Join(dir, "root", path); unknown {
			f.root = path
		}
		f.foreignFile, _ = readForeignFile(path, f.root) // one that cannot be read is not known
		found = append(found, f)
	}
	return found, err
}

// socketHere opens a socket in the network namespace of the calling thread, and returns its inode.
func socketHere() (inode uint64, done func(), err error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, nil, os.NewSyscallError("socket", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrUnix{}); err != nil { // only a bound one is listed
		unix.Close(fd)
		return 0, nil, os.NewSyscallError("bind", err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return 0, nil, os.NewSyscallError("fstat", err)
	}
	return st.Ino, func() { unix.Close(fd) }, nil
}

// lists reports whether the network namespace of a process has a socket: everybody may see that.
func lists(dir string, inode uint64) bool {
	b, err := os.ReadFile(filepath.Join(dir, "net/unix"))
	return err == nil && slices.ContainsFunc(strings.Split(string(b), "\n"), func(line string) bool {
		fields := strings.Fields(line)
		return len(fields) > 6 && fields[6] == strconv.FormatUint(inode, 10)
	})
}

// isTrusted reports whether a process runs for root or this user, and was started by one of them: a program with the
// set-user-ID bit has the arguments of whoever started it.
func isTrusted(dir string) bool {
	b, err := os.ReadFile(filepath.Join(dir, "status")) // the owner of dir says less: root, if the process cannot be traced
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(b), "\nUid:")
	line, _, _ := strings.Cut(rest, "\n")
	uids := strings.Fields(line)
	self := strconv.Itoa(os.Geteuid())
	return len(uids) > 0 && !slices.ContainsFunc(uids, func(uid string) bool { return uid != "0" && uid != self })
}

// readList reads a file of a process that has texts with a zero byte behind each.
func readList(dir, name string) ([]string, error) {
	b, err := os.ReadFile(filepath.Join(dir, name))
	return strings.Split(string(b), "\x00"), err
}

// subnetFileOf returns the subnet file of a flanneld with these arguments and environment, and whether an argument gives it.
func subnetFileOf(args, environ []string) (path string, isGiven bool) {
	for i, arg := range args {
		name, value, ok := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		if name != "subnet-file" || !strings.HasPrefix(arg, "-") {
			continue
		}
		if !ok && i+1 < len(args) {
			value = args[i+1]
		}
		return value, true
	}
	for _, e := range environ {
		if value, ok := strings.CutPrefix(e, "FLANNELD_SUBNET_FILE="); ok && value != "" {
			return value, false
		}
	}
	return "/run/flannel/subnet.env", false
}
