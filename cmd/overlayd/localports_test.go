package main

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// takePorts takes TCP ports as soon as it can and keeps them: as a listener, or silent as a socket that has one without listening. A
// snatcher says first that it has begun.
func takePorts(how string, all []string) {
	if how == "snatch" {
		fmt.Println("snatching")
	}
	for len(all) > 0 {
		at := netip.MustParseAddrPort(all[0])
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
		if err == nil && how != "silent" {
			err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
		}
		if err == nil {
			err = unix.Bind(fd, &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()})
		}
		if err == nil && how != "silent" {
			err = unix.Listen(fd, 1)
		}
		if err != nil {
			unix.Close(fd)
			all = append(all[1:], all[0])
			continue
		}
		fmt.Println("has", at)
		all = all[1:]
	}
	fmt.Println("has all")
	time.Sleep(time.Hour)
}

// The TCP ports of a daemon in these tests.
const (
	healthAt  = "127.0.0.1:8081"
	bothPorts = healthAt + "," + metricsAt
)

var portFlags = []string{"--healthz-ip=127.0.0.1", "--healthz-port=8081", "--metrics-port=9799"}

// takenLine is the part of the warnings of a port that another user has.
const takenLine = "another user has a TCP port of this daemon"

// says waits until overlayd status ends with a code and has every part.
func (h *host) says(code int, parts ...string) {
	t := h.c.t
	t.Helper()
	eventually(t, promised(5*time.Second), fmt.Sprintf("status %d", code), func() error {
		got, out := overlayd(t, "status", "--subnet-file", h.subnetFile)
		for _, p := range parts {
			if !strings.Contains(out, p) {
				return fmt.Errorf("no %q in\n%s", p, out)
			}
		}
		if got != code {
			return fmt.Errorf("exit code %d:\n%s", got, out)
		}
		return nil
	})
}

// answersAt checks that the daemon answers at its ports.
func (h *host) answersAt(health, metrics bool) {
	t := h.c.t
	t.Helper()
	if health {
		if got := get(t, h, healthAt, "/readyz"); !strings.HasPrefix(got, "200 overlayd is ready") {
			t.Errorf("readyz: %s", got)
		}
	}
	if metrics {
		if got := series(t, scrape(t, h), `overlayd_endpoint_listening{address="`+healthAt+`",endpoint="healthz"}`); got != map[bool]float64{true: 1}[health] {
			t.Errorf("listening: %v", got)
		}
	}
}

// TestTCPPortTaken: a user of the host who has the TCP ports of a daemon costs it these and nothing else: it starts, a config change
// restarts its session, and soon after the ports are free it answers there. Log and status name him. Once it has the ports, nobody
// gets them.
func TestTCPPortTaken(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{modeKernel, modeUserspace} {
		for _, how := range []string{"listen", "silent"} {
			t.Run(mode+"/"+how, func(t *testing.T) {
				t.Parallel()
				c := newCluster(t, 1, testNetwork)
				h := c.hosts[0]
				user := h.startUser(how+" "+bothPorts, "has all")
				h.start(append(portFlags, "--dataplane", mode)...).waitLog("msg=ready", patience)
				text, pid := h.daemon.text(), fmt.Sprintf("(pid %d) of user %d", user.cmd.Process.Pid, nobody)
				for _, part := range []string{"address=" + healthAt, "address=" + metricsAt, fmt.Sprintf("uid=%d", nobody), pid, "fix="} {
					if !strings.Contains(text, part) {
						t.Errorf("no %q in the log", part)
					}
				}
				h.says(exitFailure, "healthz does not listen at "+healthAt, "metrics does not listen at "+metricsAt, pid)
				ready := func(n int) {
					t.Helper()
					eventually(t, patience, "another session", func() error {
						if got := linesWith(h.daemon.text(), "msg=ready"); got != n {
							return fmt.Errorf("ready %d times, want %d", got, n)
						}
						return nil
					})
				}
				port := func(n string) string { return strings.Replace(testNetwork, `"vxlan"`, `"vxlan","Port":`+n, 1) }
				c.put(storePrefix+"config", port("4789"))
				ready(2)
				if n := linesWith(h.daemon.text(), takenLine); n != 2 {
					t.Errorf("%d warnings", n)
				}
				user.stop(unix.SIGKILL)
				h.says(0)
				h.answersAt(true, true)
				eventually(t, patience, "two lines of free ports", func() error { // said after it is so
					return above(uint64(linesWith(h.daemon.text(), "the TCP port is free: listening")), 1)
				})
				if n := linesWith(h.daemon.text(), "the TCP port is free: listening"); n != 2 {
					t.Errorf("%d lines of free ports", n)
				}
				user = h.startUser("snatch "+bothPorts, "snatching")
				c.put(storePrefix+"config", port("4790"))
				ready(3)
				h.answersAt(true, true)
				if strings.Contains(user.text(), "has ") {
					t.Errorf("the user got a port:\n%s", user.text())
				}
				if code := h.daemon.stop(unix.SIGTERM); code != 0 {
					t.Errorf("exit code %d", code)
				}
				user.waitLog("has all", patience)
				h.start(append(portFlags, "--dataplane", mode)...).waitLog("msg=ready", patience) // and ends while it waits
				if code := h.daemon.stop(unix.SIGTERM); code != 0 {
					t.Errorf("exit code %d", code)
				}
			})
		}
	}
}

// TestTCPPortOfOperator: a port that a service of root listens at is a wrong flag, whoever else has it too.
func TestTCPPortOfOperator(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, testNetwork)
	h := c.hosts[0]
	h.Must(func() error {
		l, err := net.Listen("tcp", healthAt)
		if err == nil {
			t.Cleanup(func() { l.Close() })
		}
		return err
	})
	h.startUser("listen 127.0.0.2:8081", "has all")
	p := h.start("--dataplane", modeUserspace, "--healthz-port=8081")
	if code := p.wait(patience); code != exitFailure || !strings.Contains(p.text(), "--healthz-ip 0.0.0.0 --healthz-port 8081: listen tcp") || !strings.Contains(p.text(), "has it") {
		t.Errorf("exit code %d", code)
	}
}

// TestReplaceWithPortTaken: a daemon that waits for one of its ports hands over the other one, and waits no more: the next daemon gets the port.
func TestReplaceWithPortTaken(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{modeKernel, modeUserspace} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, 1, testNetwork)
			h := c.hosts[0]
			user := h.startUser("listen "+healthAt, "has all")
			args := append(portFlags, "--dataplane", mode)
			h.up(args...)
			h.answersAt(false, true)
			for i := range 3 {
				before := h.daemon
				if i == 2 { // free, at any moment of the hand-over
					user.cmd.Process.Signal(unix.SIGKILL)
				}
				h.up(append(args, "--replace")...)
				if code := before.wait(patience); code != 0 {
					t.Errorf("exit code %d of the daemon that was replaced", code)
				}
				if i < 2 {
					h.answersAt(false, true)
				}
			}
			h.says(0)
			h.answersAt(true, true)
		})
	}
}

// TestEtcdPortOfUser: a daemon whose etcd's port another user has is ready all the same, with its own etcd, and does not take the
// stranger for the store; other hosts join once the port is free.
func TestEtcdPortOfUser(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"listen", "silent"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			f := newFirst(t, 2, "--dataplane", modeUserspace)
			user := f.startUser(how+" 192.0.2.2:2379", "has all")
			f.run().waitLog("msg=ready", patience)
			holder := fmt.Sprintf("(pid %d) of user %d", user.cmd.Process.Pid, nobody)
			const warning = "embedded etcd serves this host alone"
			if text := f.daemon.text(); !strings.Contains(text, warning) || !strings.Contains(text, holder) || !strings.Contains(text, "another address by --etcd-listen-client-url") {
				t.Error("the log does not say whose the port is, and what to do")
			}
			f.says(exitFailure, "the embedded etcd serves this host alone", holder)
			user.stop(unix.SIGKILL)
			f.daemon.waitLog("embedded etcd has its TCP port", promised(4*time.Second))
			f.join()
			f.says(0)
			if text := f.daemon.text(); linesWith(text, warning) != 1 || linesWith(text, "does not run") > 0 {
				t.Errorf("log:\n%s", text)
			}
			if code := f.daemon.stop(unix.SIGTERM); code != 0 {
				t.Errorf("exit code %d", code)
			}
		})
	}
}

// TestPortsOfConnectionsTaken: a user of the host who has every TCP port from which a connection could lead to the store keeps no daemon from
// starting, and, when it has given up its rights, from following the store after it has lost the connection.
func TestPortsOfConnectionsTaken(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{modeKernel, modeUserspace} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, 1, testNetwork)
			h := c.hosts[0]
			free := h.TakePorts(t, "tcp")
			h.shipped("--dataplane", mode).waitLog("msg=ready", patience)
			h.daemon.waitLog("all capabilities but these are given up", patience)
			const warning = "every TCP port of this host is taken: a connection to the store shares one"
			if text := h.daemon.text(); linesWith(text, warning) != 1 || !strings.Contains(text, "cannot assign requested address") || !strings.Contains(text, "ss -Htanp") {
				t.Errorf("the log does not say once what is wrong, and what to do:\n%s", text)
			}
			c.etcd.stop(unix.SIGKILL)
			c.runEtcd()
			c.waitEtcd()
			c.put(storePrefix+"config", strings.Replace(testNetwork, `"vxlan"`, `"vxlan","Port":4789`, 1))
			eventually(t, patience, "another session", func() error {
				if n := linesWith(h.daemon.text(), "msg=ready"); n != 2 {
					return fmt.Errorf("ready %d times", n)
				}
				return nil
			})
			h.says(0)
			free()
			if code := h.daemon.stop(unix.SIGTERM); code != 0 {
				t.Errorf("exit code %d", code)
			}
		})
	}
}

// TestEveryPortTaken: a user of the host who has every UDP and TCP port but that of the overlay keeps no daemon from starting, and no packet
// from going either way, also after a config change has restarted the session, and after another daemon has taken its place. The log of each says so
// once for each family, and that it is over.
func TestEveryPortTaken(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{modeKernel, modeUserspace} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			c := newClusterOn(t, []string{under4, under6}, 2, dualNetwork)
			h := c.hosts[0]
			var own net.PacketConn
			h.Must(func() (err error) { own, err = net.ListenPacket("udp", ":8472"); return err })
			free := h.TakePorts(t, "")
			own.Close()
			h.shipped("--dataplane", mode).waitLog("msg=ready", patience)
			h.daemon.waitLog("all capabilities but these are given up", patience)
			c.hosts[1].up("--dataplane", mode)
			a, b := h.pod(0, 0), c.hosts[1].pod(0, 0)
			reached := func() {
				t.Helper()
				for i := range a.addrs {
					reach(t, a, b.addrs[i])
					reach(t, b, a.addrs[i])
				}
			}
			const begun, over = "every UDP port of this host is taken: VXLAN packets leave from the VXLAN port alone", "there are UDP ports again"
			lines := 0
			if mode == modeUserspace {
				lines = 2
			}
			reached()
			if text := h.daemon.text(); linesWith(text, begun) != lines || lines > 0 && !strings.Contains(text, "ss -Huanp") {
				t.Errorf("the log does not say once what is wrong, and what to do:\n%s", text)
			}
			c.put(storePrefix+"config", strings.Replace(dualNetwork, `{`, `{"EnableNFTables":true,`, 1))
			h.waitSessions(2)
			reached()
			before := h.daemon
			h.shipped("--dataplane", mode, "--replace").waitLog("msg=ready", patience)
			if code := before.wait(patience); code != 0 || linesWith(before.text(), begun) != lines {
				t.Errorf("exit code %d of the daemon that was replaced", code)
			}
			reached()
			h.says(0)
			free()
			eventually(t, patience, "several ports", func() error {
				if n := linesWith(h.daemon.text(), over); n != lines {
					return fmt.Errorf("%d lines", n)
				}
				return nil
			})
			reached()
			if n := linesWith(h.daemon.text(), begun); n != lines {
				t.Errorf("%d lines of it", n)
			}
			if code := h.daemon.stop(unix.SIGTERM); code != 0 {
				t.Errorf("exit code %d", code)
			}
		})
	}
}
