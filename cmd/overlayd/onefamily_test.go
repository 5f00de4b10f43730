package main

import (
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// TestHostLosesAFamily: of a dual-stack network a host loses its underlay of one family, and gets it back. Its pod keeps
// its addresses and is reached at both by whatever family there is.
func TestHostLosesAFamily(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ mode, lost, standIn, addr string }{
		{modeKernel, "-4", `"PublicIP":"24`, "192.0.2.3/24"}, {modeUserspace, "-6", `"PublicIPv6":"100::c000:203"`, "2001:db8::3/64"},
	} {
		t.Run(tt.mode+tt.lost, func(t *testing.T) {
			t.Parallel()
			c := newClusterOn(t, []string{under4, under6}, 2, dualNetwork)
			proxyTCP(t, c.under, "[2001:db8::1]:2379", "192.0.2.1:2379")
			for _, h := range c.hosts {
				h.up("--dataplane", tt.mode, "--etcd-endpoints", "http://[2001:db8::1]:2379,http://192.0.2.1:2379")
			}
			h := c.hosts[1]
			key, a, b := h.key(), c.hosts[0].pod(0, 0), h.pod(0, 0)
			for _, step := range []struct {
				change  []string
				standIn bool
			}{{nil, false}, {[]string{tt.lost, "addr", "flush", "dev", "eth0", "scope", "global"}, true}, {[]string{"addr", "add", tt.addr, "dev", "eth0"}, false}} {
				if step.change != nil {
					h.Run("ip", step.change...)
				}
				eventually(t, patience, "the lease says so", func() error {
					if l := c.get(key); l == "" || strings.Contains(l, tt.standIn) != step.standIn {
						return fmt.Errorf("lease %s", l)
					}
					return nil
				})
				for _, addr := range b.addrs {
					eventually(t, patience, addr.String(), func() error { return echoWithin(a.NS, addr, 1000, 200*time.Millisecond) })
				}
			}
		})
	}
}

// proxyTCP passes connections to one address in a namespace on to another one there.
func proxyTCP(t *testing.T, ns *netnstest.NS, at, to string) {
	t.Helper()
	var l net.Listener
	ns.Must(func() (err error) { l, err = net.Listen("tcp", at); return err })
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return // closed
			}
			go func() {
				defer conn.Close()
				var other net.Conn
				if ns.Do(func() (err error) { other, err = net.Dial("tcp", to); return err }) != nil {
					return
				}
				defer other.Close()
				go io.Copy(other, conn)
				io.Copy(conn, other)
			}()
		}
	}()
}
