package admin

import (
	"net"
	"testing"
)

// TestRootIsAdmitted: users with one connection each do not keep root out.
func TestRootIsAdmitted(t *testing.T) {
	t.Parallel()
	var c conns
	for i := range maxConns {
		k := &conn{UnixConn: new(net.UnixConn), who: Caller{UID: 100000 + uint32(i)}, conns: &c}
		c.open = append(c.open, k)
	}
	root := &conn{UnixConn: new(net.UnixConn), who: Caller{UID: 0}, conns: &c}
	if v := c.victim(root); v == root {
		t.Error("root makes room for another user")
	}
}
