package main

import (
	"fmt"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"
)

const twoFamilies = `{"Network":"10.5.0.0/16","SubnetMax":"10.5.63.0","Backend":{"Type":"vxlan"},"EnableIPv6":true,"IPv6Network":"fd05::/48"}`

// TestRivals: 3500 values of 60 kB, whose keys overlap every subnet or none.
func TestRivals(t *testing.T) {
	for name, key := range map[string]string{"overlapping": "0.0.0.0-1&fd06:0:0:%x::-64", "others": "128.0.0.0-1&fd06:0:0:%x::-64"} {
		t.Run(name, func(t *testing.T) {
			c := newLooseCluster(t, 1)
			c.put(storePrefix+"config", twoFamilies)
			value := strings.Repeat("x", 60_000)
			c.putMany(3500, 20, func(i int) clientv3.Op { return clientv3.OpPut(subnets+fmt.Sprintf(key, i+1), value) })
			h := c.hosts[0]
			h.up("--dataplane", modeKernel)
			if most := h.daemon.peak(); most > maxResident && !raceEnabled {
				t.Errorf("%d kB of memory, want at most %d", most, maxResident)
			}
		})
	}
}

// TestRevoked: 250 000 marks of revocations.
func TestRevoked(t *testing.T) {
	c := newLooseCluster(t, 1)
	c.put(storePrefix+"config", testNetwork)
	c.putMany(250_000, 125, func(i int) clientv3.Op {
		return clientv3.OpPut(fmt.Sprintf("%soverlayd/revoked/%d.%d.%d.0-24", storePrefix, 11+i>>16, i>>8&0xff, i&0xff), `{"PublicIP":"1.2.3.4","PublicIPv6":null}`)
	})
	h := c.hosts[0]
	h.up("--dataplane", modeKernel)
	if most := h.daemon.peak(); most > maxResident && !raceEnabled {
		t.Errorf("%d kB of memory, want at most %d", most, maxResident)
	}
}

// TestOwnEntries: entries of this host's address that do not fit, under one etcd lease.
func TestOwnEntries(t *testing.T) {
	c := newLooseCluster(t, 1)
	c.put(storePrefix+"config", testNetwork)
	h := c.hosts[0]
	grant, err := c.client.Grant(t.Context(), 86400)
	if err != nil {
		t.Fatal(err)
	}
	c.putMany(20_000, 125, func(i int) clientv3.Op {
		return clientv3.OpPut(fmt.Sprintf("%s11.%d.%d.0-24", subnets, i>>8&0xff, i&0xff), `{"PublicIP":"`+h.addr.String()+`","PublicIPv6":null}`, clientv3.WithLease(grant.ID))
	})
	h.up("--dataplane", modeKernel) // within patience
	for _, key := range []string{"11.78.30.0-24", "11.78.31.0-24"} {
		if c.get(subnets+key) == "" {
			t.Errorf("%s is gone: such entries are left to expire, but for a few", key)
		}
	}
}

// TestOwnReservations: reservations for this host's address that do not fit. They never expire, and an operator may have made them.
func TestOwnReservations(t *testing.T) {
	c := newLooseCluster(t, 1)
	c.put(storePrefix+"config", testNetwork)
	h := c.hosts[0]
	c.putMany(120_000, 125, func(i int) clientv3.Op {
		return clientv3.OpPut(fmt.Sprintf("%s11.%d.%d.%d-31", subnets, i>>15, i>>7&0xff, i&0x7f*2), `{"PublicIP":"`+h.addr.String()+`","PublicIPv6":null}`)
	})
	h.up("--dataplane", modeKernel)
	if most := h.daemon.peak(); most > maxResident && !raceEnabled {
		t.Errorf("%d kB of memory, want at most %d", most, maxResident)
	}
	key := h.key()
	h.daemon.stop(unix.SIGKILL)
	h.up("--dataplane", modeKernel)
	if got := h.key(); got != key {
		t.Errorf("the lease is %s after a restart, was %s", got, key)
	}
}

// TestStolenNetwork: a config of another name takes a network that works off the host when the daemon is started again.
func TestStolenNetwork(t *testing.T) {
	c := newLooseCluster(t, 1)
	config := func(network, value string) { c.put("/coreos.com/network/"+network+"/config", value) }
	config("red", `{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan","VNI":11}}`)
	h, dir := c.hosts[0], t.TempDir()
	start := func() {
		h.daemon = h.overlayd("--etcd-endpoints", c.url, "--dataplane", modeKernel, "--watch-networks", "--subnet-dir", dir)
	}
	start()
	h.daemon.waitLog("msg=ready network=red", patience)
	const evil = 20
	for i := range evil {
		config(fmt.Sprintf("evil%d", i), `{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan","VNI":11}}`)
	}
	h.daemon.waitLog(": want another", patience)
	for i := range 3 {
		h.daemon.stop(unix.SIGTERM)
		start()
		h.daemon.waitLog("msg=ready network=", patience)
		if !strings.Contains(h.daemon.text(), "msg=ready network=red") {
			t.Errorf("restart %d: another network is served in the place of red:\n%s", i, h.daemon.text())
		}
	}
}
