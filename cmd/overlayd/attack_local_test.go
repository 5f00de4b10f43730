package main

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// attackAs is what a user of the host does.
func attackAs(task string) {
	what, where, _ := strings.Cut(task, " ")
	hello := append([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), frame(4, 0, 0, nil)...)
	for _, r := range []int{unix.RLIMIT_NOFILE} {
		var l unix.Rlimit
		unix.Getrlimit(r, &l)
		l.Cur = l.Max
		unix.Setrlimit(r, &l)
	}
	var held []net.Conn
	switch what {
	case "crowd": // connections that look like clients, again as soon as one has ended
		var wg sync.WaitGroup
		for range 700 {
			go func() {
				for {
					c, err := net.Dial("tcp", where)
					if err != nil {
						time.Sleep(5 * time.Millisecond)
						continue
					}
					c.Write(hello)
					b := make([]byte, 4096)
					for {
						if _, err := c.Read(b); err != nil {
							break
						}
					}
					c.Close()
				}
			}()
		}
		time.Sleep(2 * time.Second)
		fmt.Println("attacks")
		wg.Wait()
	case "halfopen":
		var mu sync.Mutex
		for range 16 {
			go func() {
				for {
					c, err := net.Dial("tcp", where)
					if err != nil {
						time.Sleep(time.Millisecond)
						continue
					}
					mu.Lock()
					if held = append(held, c); len(held) > 800 {
						held[0].Close()
						held = held[1:]
					}
					mu.Unlock()
				}
			}()
		}
		time.Sleep(2 * time.Second)
		fmt.Println("attacks")
	case "many": // connections that stay, of every kind
		for i := range 10_000 {
			c, err := net.DialTimeout("tcp", where, 50*time.Millisecond)
			if err != nil {
				continue
			}
			switch i % 4 {
			case 0:
				c.Write([]byte("GET / HTTP/1.1\r\nx: "))
			case 1:
				go c.Write([]byte("GET / HTTP/1.1\r\nx: " + strings.Repeat("x", 1<<20)))
			case 2:
				c.Write([]byte{22, 3, 1, 1, 0})
			}
			held = append(held, c)
		}
		fmt.Println("attacks")
	case "track":
		track()
	}
	time.Sleep(time.Hour)
}

// TestAttackSharedAddress: a user of a host has connections to the embedded etcd from the address of the host: the daemon of the host starts all the same.
func TestAttackSharedAddress(t *testing.T) {
	for _, how := range []string{"crowd", "halfopen"} {
		t.Run(how, func(t *testing.T) {
			c := newCluster(t, 2, testNetwork)
			a, b := c.upPair([2]string{modeUserspace, modeKernel})
			there, back := startMeters(t, a, b)
			h := c.hosts[1]
			h.startUser("attack "+how+" 192.0.2.1:2379", "attacks")
			time.Sleep(3 * time.Second)
			if lost := there.finish() + back.finish(); lost > 0 {
				t.Errorf("%d datagrams lost", lost)
			}
			t.Logf("lines of the running daemon: %s", h.daemon.text()[max(0, len(h.daemon.text())-1500):])
			t.Logf("lines of etcd: %d", strings.Count(c.etcd.text(), "\n"))
			h.daemon.stop(unix.SIGTERM)
			began := time.Now()
			h.start("--dataplane", modeKernel)
			for linesWith(h.daemon.text(), "msg=ready") == 0 && time.Since(began) < 20*time.Second {
				time.Sleep(10 * time.Millisecond)
			}
			t.Logf("ready %d after %s:\n%s", linesWith(h.daemon.text(), "msg=ready"), time.Since(began), h.daemon.text())
			if linesWith(h.daemon.text(), "msg=ready") == 0 {
				t.Errorf("the daemon does not start:\n%s", h.daemon.text())
			}
		})
	}
}

// TestAttackPorts: ten thousand connections to healthz and metrics.
func TestAttackPorts(t *testing.T) {
	c := newCluster(t, 2, testNetwork)
	a, b := c.upPair([2]string{modeUserspace, modeKernel}, "--healthz-port=8081", "--metrics-port=9799")
	there, back := startMeters(t, a, b)
	h := c.hosts[0]
	h.startUser("attack many 127.0.0.1:8081", "attacks")
	h.startUser("attack many 127.0.0.1:9799", "attacks")
	h.learns(70)
	for _, url := range []string{"http://127.0.0.1:8081/healthz", "http://127.0.0.1:9799/metrics"} {
		began := time.Now()
		var resp *http.Response
		err := h.Do(func() (err error) {
			client := http.Client{Timeout: 6 * time.Second, Transport: &http.Transport{DialContext: nil}}
			var conn net.Conn
			if conn, err = net.DialTimeout("tcp", strings.Split(url, "/")[2], 3*time.Second); err != nil {
				return err
			}
			client.Transport = &http.Transport{Dial: func(string, string) (net.Conn, error) { return conn, nil }}
			resp, err = client.Get(url)
			return err
		})
		t.Logf("%s: %v after %s", url, err, time.Since(began))
		_ = resp
	}
	if lost := there.finish() + back.finish(); lost > 0 {
		t.Errorf("%d datagrams lost", lost)
	}
	h.restartSessions(2)
	h.daemon.stop(unix.SIGTERM)
	h.up("--dataplane", modeUserspace, "--healthz-port=8081", "--metrics-port=9799")
	t.Logf("%d kB", h.daemon.peak())
}

// track fills the table of connections of the network namespace with entries that last: answered, and again after two seconds.
func track() {
	var socks []*net.UDPConn
	for range 2 {
		s, err := net.ListenUDP("udp4", &net.UDPAddr{})
		if err != nil {
			panic(err)
		}
		socks = append(socks, s)
	}
	port := func(i int) int { return socks[i].LocalAddr().(*net.UDPAddr).Port }
	send := func(i int, from, to [4]byte) {
		info := &unix.Inet4Pktinfo{Spec_dst: from}
		oob := unix.PktInfo4(info)
		raw, _ := socks[i].SyscallConn()
		raw.Control(func(fd uintptr) {
			unix.SendmsgN(int(fd), []byte{1}, oob, &unix.SockaddrInet4{Addr: to, Port: port(1 - i)}, unix.MSG_DONTWAIT)
		})
	}
	for _, s := range socks { // what arrives is of no account
		go func() {
			b := make([]byte, 1)
			for {
				s.Read(b)
			}
		}()
	}
	const all = 270_000
	for round := 0; ; round++ {
		for k := range all {
			a, b := [4]byte{127, 1, 0, 1}, [4]byte{127, byte(2 + k>>16), byte(k >> 8), byte(k)}
			send(0, a, b)
			send(1, b, a)
		}
		if round == 2 {
			fmt.Println("attacks")
		}
		if round < 3 {
			time.Sleep(500 * time.Millisecond)
		} else {
			time.Sleep(10 * time.Second)
		}
	}
}

// TestAttackTrack: a user fills the host's table of connections. It fails: the kernel drops the first packet of each new flow, and nothing of the overlay is exempt (notrack).
func TestAttackTrack(t *testing.T) {
	for _, mode := range []string{modeKernel, modeUserspace} {
		t.Run(mode, func(t *testing.T) {
			c := newCluster(t, 3, testNetwork)
			for i := range 3 {
				c.hosts[i].up("--dataplane", mode, "--ip-masq")
			}
			a, b, d := c.hosts[0].pod(0, 0), c.hosts[1].pod(0, 0), c.hosts[2].pod(0, 0)
			warmUp(t, a, b)
			there, back := startMeters(t, a, b)
			h := c.hosts[0]
			h.startUser("attack track", "attacks")
			h.Must(func() error {
				b, err := os.ReadFile("/proc/thread-self/net/stat/nf_conntrack")
				t.Logf("%s %v", b, err)
				n, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_count")
				t.Logf("%s %v", n, err)
				return nil
			})
			time.Sleep(time.Second)
			if lost := there.finish() + back.finish(); lost > 0 {
				t.Errorf("%d datagrams of an old flow lost", lost)
			}
			fails := 0
			for range 20 {
				if err := echoWithin(a.NS, d.addr, 56, 300*time.Millisecond); err != nil {
					fails++
				}
			}
			t.Logf("%d of 20 new flows fail", fails)
			if fails > 0 {
				t.Errorf("%d of 20 new flows fail", fails)
			}
			h.daemon.stop(unix.SIGTERM)
			began := time.Now()
			h.start("--dataplane", mode, "--ip-masq")
			for linesWith(h.daemon.text(), "msg=ready") == 0 && time.Since(began) < 15*time.Second {
				time.Sleep(10 * time.Millisecond)
			}
			t.Logf("ready %d after %s", linesWith(h.daemon.text(), "msg=ready"), time.Since(began))
			if linesWith(h.daemon.text(), "msg=ready") == 0 {
				t.Errorf("the daemon does not start:\n%s", h.daemon.text())
			}
		})
	}
}
