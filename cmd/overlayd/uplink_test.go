package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// TestUplink: --offload says whether there is a TAP device for superpackets, and nothing of it is left however the daemon ends.
func TestUplink(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, testNetwork)
	h := c.hosts[0]
	for _, offload := range []string{"auto", "tunnel", "socket", "plain"} {
		h.up("--dataplane", modeUserspace, "--offload", offload)
		want := 2 // the device and its table
		if offload == "socket" || offload == "plain" {
			want = 0
		} else if strings.Contains(h.daemon.text(), "no tunnel offload") {
			netnstest.Lacks(t, "kernel with the tunnel offload (Linux 6.17)")
		}
		if got := h.uplinks(); len(got) != want {
			t.Errorf("--offload=%s: %v", offload, got)
		}
		h.daemon.stop(unix.SIGKILL)
		eventually(t, patience, "nothing of the uplink is left", func() error {
			if got := h.uplinks(); len(got) > 0 {
				return fmt.Errorf("left: %v", got)
			}
			return nil
		})
	}
	h.up("--dataplane", modeUserspace, "--debug-offloads=-tunnel") // as a kernel without it
	said := 0
	for line := range strings.Lines(h.daemon.text()) {
		if strings.Contains(line, "no tunnel offload") && strings.Contains(line, "turned off: tunnel") {
			said++
		}
	}
	if got := h.uplinks(); len(got) > 0 || said != 1 {
		t.Errorf("--debug-offloads=-tunnel: %v, and %d lines that say why", got, said)
	}
	h.daemon.stop(unix.SIGTERM)
	h.up("--dataplane", modeKernel)
	if got := h.uplinks(); len(got) > 0 {
		t.Errorf("in kernel mode: %v", got)
	}
}

// uplink returns the index of the device of dataplane/uplink, or 0 if the host has no such device.
func (h *host) uplink() (index int) {
	h.Must(func() error {
		links, err := netlink.LinkList()
		for _, l := range links {
			if strings.HasPrefix(l.Attrs().Name, "ovl.up") {
				index = l.Attrs().Index
			}
		}
		return err
	})
	return index
}

// uplinks lists devices and tables of dataplane/uplink.
func (h *host) uplinks() (found []string) {
	h.Must(func() error {
		links, err := netlink.LinkList()
		for _, l := range links {
			if strings.HasPrefix(l.Attrs().Name, "ovl.up") {
				found = append(found, "device "+l.Attrs().Name)
			}
		}
		return err
	})
	for line := range strings.Lines(h.Run("nft", "list", "tables")) {
		if strings.Contains(line, "ovl.up") {
			found = append(found, strings.TrimSpace(line))
		}
	}
	return found
}
