package main

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// TestPeerIsNamed: a daemon says which peer it cannot reach, why, and what to do, and when that is over, one line each.
func TestPeerIsNamed(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, testNetwork)
	c.upPair([2]string{modeKernel, modeUserspace}, "--probe-interval=1s", "-v=1")
	for i, h := range c.hosts {
		h.daemon.waitLog(fmt.Sprintf(`msg="peer answers" subnet=%s vtep=%s rtt=`, c.hosts[1-i].gateway().Masked(), c.hosts[1-i].addr), patience)
	}
	blocked := c.hosts[1]
	blocked.feed("table inet test { chain input { type filter hook input priority 0; udp dport 8472 drop; }; }", "nft", "-f", "-")
	for i, h := range c.hosts { // requests are dropped, or answers
		h.daemon.waitLog(fmt.Sprintf(`level=WARN msg="peer cannot be reached" subnet=%s vtep=%s reason=tunnel_blocked`, c.hosts[1-i].gateway().Masked(), c.hosts[1-i].addr), patience)
	}
	blocked.Run("nft", "delete", "table", "inet", "test")
	for _, h := range c.hosts {
		h.daemon.waitLog(`level=INFO msg="peer can be reached again"`, patience)
		eventually(t, patience, "one line each", func() error {
			if text := h.daemon.text(); strings.Count(text, "reason=tunnel_blocked") != 1 || !strings.Contains(text, "let UDP port 8472 pass") || strings.Count(text, "reached again") != 1 {
				return errors.New(text)
			}
			return nil
		})
	}
}
