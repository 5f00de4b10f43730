package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"
)

// disks are those of a host, each with the files that overlayd writes there.
var disks = []struct{ name, size string }{
	{"files", "256k"},             // subnet.env, .node, .leases
	{"locks", "64k,nr_inodes=20"}, // /run/flannel/overlayd
	{"etcd", "300m"},              // etcd makes room for its log beforehand
}

// TestDisks: while a disk is full or read-only, whatever is on it, the log stays short and packets arrive; five seconds
// after there is room everything is as it should be. It takes a second of all disks together, or as long as
// OVERLAYD_DISKS says of each disk by itself, as in make test-long.
func TestDisks(t *testing.T) {
	t.Parallel()
	long := durationFrom(t, "OVERLAYD_DISKS", 0)
	for _, mode := range []string{modeKernel, modeUserspace} {
		if long == 0 {
			t.Run(mode, func(t *testing.T) {
				t.Parallel()
				d := newDisks(t, mode, "files", "locks", "etcd")
				d.trouble("full", time.Second)
				d.trouble("read-only", time.Second)
			})
			continue
		}
		for _, disk := range disks {
			for how := range troubles {
				t.Run(mode+"/"+disk.name+"/"+how, func(t *testing.T) {
					t.Parallel()
					newDisks(t, mode, disk.name).trouble(how, long)
				})
			}
		}
	}
}

// diskTest is a first host whose files are on small disks of its own, some of which have trouble.
type diskTest struct {
	*first
	dirs   map[string]string // by the name of the disk, as the test reaches them
	bad    []string          // names of disks
	client *clientv3.Client
	a, b   *pod
	mtu    int
	vni    uint32
	lease  string // that the file with the leases has to have; "": none
}

func newDisks(t *testing.T, mode string, bad ...string) *diskTest {
	f := newFirst(t, 2, "--dataplane", mode)
	base := t.TempDir()
	d := &diskTest{first: f, dirs: map[string]string{}, bad: bad, mtu: 1400, vni: 1}
	inside := map[string]string{"files": filepath.Join(base, "files"), "locks": "/run/flannel", "etcd": filepath.Join(base, "etcd")}
	var mounts []string
	for _, disk := range disks {
		mounts = append(mounts, fmt.Sprintf("mkdir -p %[1]s; mount -t tmpfs -o size=%s disk %[1]s", inside[disk.name], disk.size))
	}
	f.dir = filepath.Join(inside["etcd"], "data")
	f.subnetFile = filepath.Join(inside["files"], "subnet.env")
	p := f.mountNS(strings.Join(mounts, "; "), append(f.args, "--etcd-data-dir", f.dir, "--subnet-file", f.subnetFile)...)
	p.waitLog("msg=ready", patience)
	root := fmt.Sprintf("/proc/%d/root", p.cmd.Process.Pid)
	for name, dir := range inside {
		d.dirs[name] = root + dir
	}
	f.subnetFile = root + f.subnetFile
	t.Cleanup(func() {
		if t.Failed() {
			out, err := exec.Command("sh", "-c", fmt.Sprintf("df -k %[1]s; ls -lR %[1]s; grep -H . /proc/%[2]d/task/*/wchan", d.dirs["etcd"], d.etcd())).CombinedOutput()
			t.Logf("the disk of etcd, and what its process waits for: %v\n%s", err, out)
		}
	})
	d.client = f.client()
	d.configure(patience)
	d.a, d.b = d.join()
	return d
}

// config is a network config.
func (d *diskTest) config() string {
	return fmt.Sprintf(`{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan","VNI":%d,"MTU":%d}}`, d.vni, d.mtu)
}

// configure writes the config and waits until every file is as it should be then.
func (d *diskTest) configure(within time.Duration) {
	d.c.t.Helper()
	began := time.Now()
	d.answers(d.client, "/coreos.com/network/config", d.config(), within)
	eventually(d.c.t, within-time.Since(began), "all files are as they should be", d.whole)
}

// troubles begin one, and return what ends it.
var troubles = map[string]func(d *diskTest, dir string) (end func()){
	"full": func(d *diskTest, dir string) func() {
		if err := fill(dir, strings.HasSuffix(dir, "/run/flannel")); !errors.Is(err, unix.ENOSPC) {
			d.c.t.Fatal(err)
		}
		return func() { d.inMountNS("rm " + insideOf(dir) + "/full*") }
	},
	// A mount that is read-only lies above the disk, because a disk with files that are open to be written does not
	// become read-only by itself.
	"read-only": func(d *diskTest, dir string) func() {
		dir = insideOf(dir)
		d.inMountNS("mount --bind " + dir + " " + dir + "; mount -o remount,bind,ro " + dir)
		return func() { d.inMountNS("umount -l " + dir) }
	},
}

// insideOf returns the path of a directory as the daemon sees it.
func insideOf(dir string) string {
	_, inside, _ := strings.Cut(dir, "/root/")
	return "/" + inside
}

// fill leaves no room on a disk, with inodes not even for one more empty file.
func fill(dir string, inodes bool) error {
	f, err := os.Create(filepath.Join(dir, "full"))
	if err != nil {
		return err
	}
	defer f.Close()
	for _, size := range []int{1 << 20, 4096, 1} {
		for err = nil; err == nil; _, err = f.Write(make([]byte, size)) {
		}
	}
	for i := 0; inodes && errors.Is(err, unix.ENOSPC) && i < 1000; i++ {
		if more, cerr := os.Create(filepath.Join(dir, fmt.Sprint("full", i))); cerr == nil {
			more.Close()
		} else {
			return cerr
		}
	}
	return err
}

// inMountNS runs a script where the daemon has its mounts.
func (d *diskTest) inMountNS(script string) {
	d.c.t.Helper()
	if out, err := exec.Command("nsenter", "-t", fmt.Sprint(d.daemon.cmd.Process.Pid), "-m", "sh", "-ec", script).CombinedOutput(); err != nil {
		d.c.t.Fatalf("%s: %v\n%s", script, err, out)
	}
}

// trouble has one for a while, and checks what the host does meanwhile and afterwards.
func (d *diskTest) trouble(how string, lasts time.Duration) {
	t := d.c.t
	t.Helper()
	began := [2]int{d.lines(0), d.lines(1)}
	var ends []func()
	for _, name := range d.bad {
		if name == "etcd" && len(d.bad) > 1 {
			d.moveOn(&began)
		}
		ends = append(ends, troubles[how](d, d.dirs[name]))
	}
	if d.bad[0] == "locks" {
		d.moveOn(&began)
	}
	there, back := d.meters()
	if lease := d.free(); lasts > time.Minute && // the file with the leases is written after 10 s
		d.put(subnets+lease, fmt.Sprintf(`{"PublicIP":"192.0.2.99","BackendType":"vxlan","BackendData":{"VNI":%d,"VtepMAC":"0e:00:00:00:00:99"}}`, d.vni)) == nil {
		d.lease = lease
	}
	d.write(how, lasts)
	for i, h := range d.c.hosts {
		n := d.lines(i) - began[i]
		t.Logf("%s: host %d logged %d lines in %s", how, i, n, lasts)
		if n > 10 {
			t.Errorf("%s: host %d logged %d lines in %s:\n%s", how, i, n, lasts, h.daemon.text())
		}
	}
	for _, end := range ends {
		end()
	}
	room := now(t)
	d.mtu -= 10
	d.configure(promised(5 * time.Second))
	t.Logf("%s: well %s after there is room", how, room.passed(t).Round(time.Millisecond))
	if lost := there.finish() + back.finish(); lost > 0 {
		t.Errorf("%s: %d datagrams lost", how, lost)
	}
}

// free returns the key of a subnet that neither host has.
func (d *diskTest) free() string {
	for i := 200; ; i++ {
		subnet := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 5, byte(i), 0}), 24)
		if !subnet.Contains(d.a.addr) && !subnet.Contains(d.b.addr) {
			return strings.Replace(subnet.String(), "/", "-", 1)
		}
	}
}

// lines counts what a host has logged, but for the changes of the MTU that the test makes, and for what a build for the race detector says of itself.
func (d *diskTest) lines(host int) int {
	text := d.c.hosts[host].daemon.text()
	return linesWith(text, "level=") - linesWith(text, "msg=MTU") - linesWith(text, "built with cgo")
}

// moveOn changes the VNI, so that another device is claimed, and waits for the traffic. What is logged of that is
// added to lines.
func (d *diskTest) moveOn(lines *[2]int) {
	d.c.t.Helper()
	for i, h := range d.c.hosts {
		lines[i] -= linesWith(h.daemon.text(), "level=INFO") - linesWith(h.daemon.text(), "msg=MTU")
	}
	defer func() {
		for i, h := range d.c.hosts {
			lines[i] += linesWith(h.daemon.text(), "level=INFO") - linesWith(h.daemon.text(), "msg=MTU")
		}
	}()
	d.vni++
	d.answers(d.client, "/coreos.com/network/config", d.config(), patience)
	for _, h := range d.c.hosts {
		h.daemon.waitLog(fmt.Sprintf("vni=%d", d.vni), patience)
	}
	warmUp(d.c.t, d.a, d.b)
}

// meters measure the traffic both ways.
func (d *diskTest) meters() (there, back *meter) {
	d.c.t.Helper()
	there, err := startMeter(d.a.NS, d.b.NS, d.b.addr, 5*time.Millisecond)
	if err != nil {
		d.c.t.Fatal(err)
	}
	if back, err = startMeter(d.b.NS, d.a.NS, d.a.addr, 5*time.Millisecond); err != nil {
		d.c.t.Fatal(err)
	}
	return there, back
}

// write has overlayd and etcd write to the disks for that time, as far as they can.
func (d *diskTest) write(how string, lasts time.Duration) {
	if pid := d.etcd(); pid != 0 && how == "read-only" && slices.Contains(d.bad, "etcd") {
		unix.Kill(pid, unix.SIGKILL) // what it has open it could go on writing
	}
	value := ""
	if slices.Contains(d.bad, "etcd") { // it fails soon: or else its log would fill the disk
		value = strings.Repeat("x", 60<<10)
	}
	until := time.Now().Add(lasts)
	for i := 0; time.Now().Before(until); i++ {
		_ = d.put(fmt.Sprintf("/coreos.com/network/x%d", i%10), value)
		if i%20 == 0 { // another subnet file
			d.mtu = 1399 - d.mtu%2
			_ = d.put("/coreos.com/network/config", d.config())
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// put writes a key, if etcd does.
func (d *diskTest) put(key, value string) error {
	ctx, cancel := context.WithTimeout(d.c.t.Context(), time.Second)
	defer cancel()
	_, err := d.client.Put(ctx, key, value)
	return err
}

// whole checks that every file is as it should be.
func (d *diskTest) whole() error {
	env, err := readEnv(d.subnetFile)
	if err != nil {
		return err
	}
	if want := fmt.Sprint(d.mtu - 50); env["FLANNEL_MTU"] != want {
		return fmt.Errorf("MTU %s, want %s", env["FLANNEL_MTU"], want)
	}
	info, err := os.Stat(d.subnetFile)
	if err != nil {
		return err
	}
	node, err := os.ReadFile(d.subnetFile + ".node")
	if err != nil {
		return err
	}
	if wrote := fmt.Sprintf("wrote %d\n", info.ModTime().UnixNano()); !strings.Contains(string(node), wrote) {
		return fmt.Errorf("node file %q lacks %q", node, wrote)
	}
	if vni := fmt.Sprintf("vni %d\n", d.vni); !strings.Contains(string(node), vni) {
		return fmt.Errorf("node file %q lacks %q", node, vni)
	}
	if b, err := os.ReadFile(d.subnetFile + ".leases"); d.lease != "" && (err != nil || !strings.Contains(string(b), d.lease)) {
		return fmt.Errorf("leases file lacks %s: %v", d.lease, err)
	}
	claims, err := filepath.Glob(filepath.Join(d.dirs["locks"], "overlayd", fmt.Sprintf("*.%d", d.vni)))
	beside, err2 := filepath.Glob(filepath.Join(d.dirs["files"], "overlayd", fmt.Sprintf("*.%d", d.vni)))
	if err = errors.Join(err, err2); err == nil && len(claims)+len(beside) == 0 {
		err = fmt.Errorf("no claim of VNI %d", d.vni)
	}
	return err
}
