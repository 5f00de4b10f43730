package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/pflag"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"golang.org/x/net/http2"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/cmd/internal/leases"
	"github.com/overlayd/overlayd/control/conns"
	"github.com/overlayd/overlayd/control/etcd/embedded"
)

// asLocalUser makes the test binary a process of another user; its value is what it does, and where.
const asLocalUser = "OVERLAYD_TEST_AS_LOCAL_USER"

// localUser is that process. It ends with its parent.
func localUser(task string) int {
	what, where, _ := strings.Cut(task, " ")
	switch what {
	case "listen", "silent", "snatch":
		takePorts(what, strings.Split(where, ","))
	case "bind":
		var socket net.PacketConn
		for socket == nil {
			socket, _ = net.ListenPacket("udp", where)
		}
		fmt.Println("bound")
		time.Sleep(time.Hour)
	case "crowd":
		crowd(where)
	case "grab":
		grab(where)
	case "put":
		put(where)
	}
	seize(where)
	fmt.Println("seized")
	for {
		seize(where)
	}
}

// grab takes a UDP port as soon as that is free.
func grab(at string) {
	fmt.Println("grabbing")
	for {
		if c, err := net.ListenPacket("udp", at); err == nil {
			fmt.Println("got", at)
			time.Sleep(time.Hour)
			c.Close()
		}
	}
}

// put writes to an etcd.
func put(etcd string) {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{etcd}, Logger: zap.NewNop()})
	if err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		_, err = client.Put(ctx, storePrefix+"config", "junk")
	}
	fmt.Println("put:", err)
	time.Sleep(time.Hour)
}

// crowd keeps as many connections to an etcd as that takes, each of which looks like one of a client.
func crowd(etcd string) {
	full := make(chan struct{}, 1)
	for range 700 {
		go func() {
			for {
				c, err := net.Dial("tcp", etcd)
				if err != nil {
					time.Sleep(5 * time.Millisecond)
					continue
				}
				_, _ = io.WriteString(c, http2.ClientPreface+"\x00\x00\x00\x04\x00\x00\x00\x00\x00") // with an empty SETTINGS frame
				if got, _ := io.ReadAll(c); bytes.Contains(got, []byte(conns.Crowded)) {
					select {
					case full <- struct{}{}:
					default:
					}
				}
				c.Close()
			}
		}()
	}
	<-full
	fmt.Println("crowds")
	time.Sleep(time.Hour)
}

// seize takes all that a user can get of what a daemon has below a directory and in the host's network namespace.
func seize(dir string) {
	var held []interface{ Close() error }
	defer func() {
		for _, h := range held {
			h.Close()
		}
	}()
	hold := func(c interface{ Close() error }, err error) {
		if err == nil {
			held = append(held, c)
		}
	}
	for _, name := range []string{"@overlayd/flannel.1", "@flannel.1"} {
		l, err := net.ListenPacket("unixgram", name)
		hold(l, err)
	}
	for _, d := range []string{dir, "/run/flannel", "/run/flannel/overlayd"} {
		filepath.WalkDir(d, func(path string, e fs.DirEntry, err error) error {
			if err != nil {
				return nil
			}
			if e.IsDir() {
				hold(os.OpenFile(filepath.Join(path, "mine"), os.O_CREATE|os.O_RDWR, 0o600))
				return nil
			}
			for range 100 {
				c, err := net.Dial("unix", path)
				if hold(c, err); err != nil {
					break
				}
			}
			for _, flags := range []int{os.O_RDWR, os.O_RDONLY} {
				f, err := os.OpenFile(path, flags|unix.O_NONBLOCK, 0)
				if hold(f, err); err == nil {
					unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB)
					unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_RDLCK})
				}
			}
			return nil
		})
	}
	for range 200 {
		c, err := net.DialTimeout("tcp", "127.0.0.1:8081", 100*time.Millisecond)
		if hold(c, err); err != nil {
			break
		}
	}
	time.Sleep(5 * time.Millisecond)
}

// startUser starts a process of another user on the host, and waits until it has done its task for the first time.
func (h *host) startUser(task, said string) *process {
	t := h.c.t
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "user")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	program := filepath.Join(dir, "stranger")
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(exe, program); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), asLocalUser+"="+task)
	cmd.SysProcAttr = &unix.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	p := startCommand(t, h.NS, "another user", cmd)
	p.waitLog(said, patience)
	return p
}

// TestPortTaken: the UDP port that another user has taken is waited for, before the first session and between two; log and
// status name the process, and the overlay is there soon after it has gone.
func TestPortTaken(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{modeKernel, modeUserspace, modeAuto} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, 1, testNetwork)
			h := c.hosts[0]
			waits := func(user *process, port, n int) {
				t.Helper()
				says := fmt.Sprintf("stranger (pid %d) has UDP port %d", user.cmd.Process.Pid, port)
				if n > 1 && !strings.Contains(h.daemon.text(), "keeps all capabilities") { // a daemon that was set up sees no processes of others
					says = fmt.Sprintf("a process of user %d has UDP port %d", nobody, port)
				}
				h.daemon.waitLog(says, patience)
				eventually(t, patience, "status says so", func() error {
					if _, out := overlayd(t, "status", "--subnet-file", h.subnetFile); !strings.Contains(out, says) {
						return fmt.Errorf("%s", out)
					}
					return nil
				})
				user.stop(unix.SIGKILL)
				eventually(t, promised(4*time.Second), "the overlay", func() error {
					if got := linesWith(h.daemon.text(), "msg=ready"); got != n {
						return fmt.Errorf("ready %d times, want %d", got, n)
					}
					return nil
				})
				if lines := linesWith(h.daemon.text(), says); lines > 2 {
					t.Errorf("%d lines of the port", lines)
				}
			}
			user := h.startUser("bind 192.0.2.2:8472", "bound")
			h.start("--dataplane", mode)
			waits(user, 8472, 1)
			user = h.startUser("bind 192.0.2.2:4789", "bound")
			c.put(storePrefix+"config", strings.Replace(testNetwork, `"vxlan"`, `"vxlan","Port":4789`, 1))
			waits(user, 4789, 2)
		})
	}
}

// TestCrowdOfAUser: a user of a host has all connections that an embedded etcd takes from there. The daemon of the host runs on, and starts.
func TestCrowdOfAUser(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, testNetwork)
	a, b := c.upPair([2]string{modeUserspace, modeKernel})
	there, back := startMeters(t, a, b)
	h := c.hosts[1]
	h.startUser("crowd 192.0.2.1:2379", "crowds")
	h.daemon.stop(unix.SIGTERM)
	h.up("--dataplane", modeKernel)
	if lost := there.finish() + back.finish(); lost > 0 {
		t.Errorf("%d datagrams lost", lost)
	}
	if n := linesWith(h.daemon.text(), "where another user has them: ended"); n != 1 {
		t.Errorf("%d lines of it:\n%s", n, h.daemon.text())
	}
}

// TestLocalUserWrites: a user of the host cannot write to an embedded etcd that listens where it does by default. Root can.
func TestLocalUserWrites(t *testing.T) {
	t.Parallel()
	f := newFirst(t, 1, "--dataplane", modeUserspace)
	f.url = embedded.DefaultListenClient
	f.run("--etcd-listen-client-url", f.url).waitLog("msg=ready", patience)
	if user := f.startUser("put "+f.url, "put:"); strings.Contains(user.text(), "put: <nil>") {
		t.Error("a user has written")
	}
	f.daemon.waitLog(fmt.Sprintf(`client="uid %d"`, nobody), patience)
	f.answers(f.client(), storePrefix+"x", "y", patience)
}

// TestLocalUser: a user of the host who takes whatever he can get, all the time, keeps no daemon from starting and no session
// from beginning, and costs no packet.
func TestLocalUser(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{modeKernel, modeUserspace} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, 2, testNetwork)
			h := c.hosts[0]
			dir := filepath.Dir(h.subnetFile)
			for d := dir; d != os.TempDir(); d = filepath.Dir(d) {
				if err := os.Chmod(d, 0o755); err != nil { // as /run/flannel is
					t.Fatal(err)
				}
			}
			h.startUser("seize "+dir, "seized")
			a, b := c.upPair([2]string{mode, modeKernel}, "--healthz-port=8081")
			there, back := startMeters(t, a, b)
			waitTraffic(t, there, 300)
			waitTraffic(t, back, 300)
			if lost := there.finish() + back.finish(); lost > 0 {
				t.Errorf("%d packets lost", lost)
			}
			h.restartSessions(2)
			h.daemon.stop(unix.SIGTERM)
			h.up("--dataplane", mode, "--healthz-port=8081")
			h.daemon.stop(unix.SIGKILL)
			h.up("--dataplane", mode, "--healthz-port=8081")
			eventually(t, patience, "the other daemon follows", func() error {
				if n := linesWith(c.hosts[1].daemon.text(), "msg=ready"); n < 2 {
					return fmt.Errorf("%d sessions", n)
				}
				return nil
			})
			warmUp(t, a, b)
			if code, out := overlayd(t, "status", "--subnet-file", h.subnetFile); code != 0 {
				t.Errorf("status: %d %s", code, out)
			}
		})
	}
}

// TestPasswordIsNoArgument: a password that was given as an argument is not in the command line, and those who have to read it still find it.
func TestPasswordIsNoArgument(t *testing.T) {
	t.Parallel()
	const secret = "s3cr3t"
	c := newCluster(t, 1, testNetwork)
	h := c.hosts[0]
	for _, args := range [][]string{{"--etcd-password=" + secret}, {"--etcd-password", secret}, {"-etcd-password", secret}} {
		h.up(append([]string{"--dataplane", modeUserspace, "--etcd-username=root"}, args...)...)
		pid := h.daemon.cmd.Process.Pid
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err != nil || len(line) == 0 || strings.Contains(string(line), secret) || strings.Contains(string(line), "etcd-password") || !strings.Contains(string(line), "--etcd-username") {
			t.Errorf("%q, %v", line, err)
		}
		if o, err := leases.FlagsOfProcess(pid, pflag.NewFlagSet("", pflag.ContinueOnError)); err != nil || o.Etcd.Password != secret || o.Etcd.Username != "root" {
			t.Errorf("flags of the process: %v, %v", o, err)
		}
		h.daemon.cmd.Process.Signal(unix.SIGHUP)
		h.daemon.waitLog("SIGHUP: read again", patience)
		if text := h.daemon.text(); strings.Contains(text, "after_a_restart") || strings.Contains(text, secret) || linesWith(text, "the etcd password is given on the command line") != 1 {
			t.Error(text)
		}
		if code := h.daemon.stop(unix.SIGTERM); code != 0 {
			t.Errorf("exit code %d", code)
		}
	}
}
