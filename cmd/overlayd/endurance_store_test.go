package main

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane"
)

// storeTrials are what becomes of etcd, of the ways to it, and of what is in it.
func storeTrials() map[string]trial {
	all := map[string]func(e *endurance){
		"etcd restarted":     func(e *endurance) { e.restartEtcd(unix.SIGTERM) },
		"etcd killed":        func(e *endurance) { e.restartEtcd(unix.SIGKILL) },
		"etcd hangs":         func(e *endurance) { e.hangEtcd(5 * time.Second) },
		"etcd out of reach":  func(e *endurance) { e.blockEtcd("drop", 10*time.Second) },
		"etcd refuses":       func(e *endurance) { e.blockEtcd("reject with tcp reset", time.Second) },
		"all keys deleted":   func(e *endurance) { e.deleteAll() },
		"all leases expired": func(e *endurance) { e.expireAll() },
		"compacted":          func(e *endurance) { e.compact() },
		"config rewritten":   func(e *endurance) { e.rewriteConfig() },
		"MTU in the config":  func(e *endurance) { e.changeMTU() },
		"foreign keys":       func(e *endurance) { e.flood() },
		"leases of others":   func(e *endurance) { e.strangers() },
		"config deleted":     func(e *endurance) { e.dropConfig() },
	}
	trials := map[string]trial{
		"junk in the store":  {do: func(e *endurance, m *member) { e.junk(m) }},
		"own lease deleted":  {do: func(e *endurance, m *member) { e.delete(m.key) }},
		"own lease expired":  {do: func(e *endurance, m *member) { e.expire(m) }},
		"own record deleted": {do: func(e *endurance, m *member) { e.delete(storePrefix + "overlayd/nodes/" + m.addr.String()) }},
	}
	for name, do := range all {
		trials[name] = trial{do: func(e *endurance, _ *member) { do(e) }}
	}
	return trials
}

// restartEtcd ends etcd, and starts it a second later with the data that it had.
func (e *endurance) restartEtcd(sig unix.Signal) {
	e.etcd.stop(sig)
	time.Sleep(time.Second)
	e.runEtcd()
	e.waitEtcd()
}

func (e *endurance) hangEtcd(lasts time.Duration) {
	e.etcd.cmd.Process.Signal(unix.SIGSTOP)
	time.Sleep(lasts)
	e.etcd.cmd.Process.Signal(unix.SIGCONT)
	e.waitEtcd()
}

// blockEtcd treats all that hosts send to etcd in some way.
func (e *endurance) blockEtcd(verdict string, lasts time.Duration) {
	e.nft(`table inet hole { chain in { type filter hook input priority 0; iifname "br0" tcp dport 2379 ` + verdict + "; }; }")
	time.Sleep(lasts)
	e.under.Run("nft", "delete", "table", "inet", "hole")
}

func (e *endurance) expire(m *member) {
	r, err := e.client.Get(e.t.Context(), m.key)
	if err == nil && len(r.Kvs) == 1 {
		_, err = e.client.Revoke(e.t.Context(), clientv3.LeaseID(r.Kvs[0].Lease))
	}
	if err != nil {
		e.t.Error(err)
	}
}

func (e *endurance) compact() {
	r, err := e.client.Get(e.t.Context(), "x")
	if err == nil {
		_, err = e.client.Compact(e.t.Context(), r.Header.Revision)
	}
	if err != nil {
		e.t.Error(err)
	}
}

// rewriteConfig writes what means the same.
func (e *endurance) rewriteConfig() {
	for _, config := range []string{e.config, strings.ReplaceAll(e.config, ",", " ,\n "), e.config} {
		e.put(storePrefix+"config", config)
		time.Sleep(100 * time.Millisecond)
	}
}

// dropConfig has none for a second.
func (e *endurance) dropConfig() {
	e.delete(storePrefix + "config")
	time.Sleep(time.Second)
	e.put(storePrefix+"config", e.config)
}

// changeMTU makes all hosts have another MTU, and then the one that they had.
func (e *endurance) changeMTU() {
	was := e.members[0].env("FLANNEL_MTU")
	for _, step := range []struct{ config, mtu string }{
		{strings.Replace(e.config, `"vxlan"`, `"vxlan","MTU":1400`, 1), "1350"},
		{e.config, was},
	} {
		e.put(storePrefix+"config", step.config)
		for _, m := range e.members {
			eventually(e.t, patience, m.name+" has MTU "+step.mtu, func() error {
				if got := m.env("FLANNEL_MTU"); got != step.mtu {
					return fmt.Errorf("it has %s", got)
				}
				return nil
			})
		}
	}
}

// transact writes in transactions of a hundred.
func (e *endurance) transact(ops []clientv3.Op) {
	for len(ops) > 0 {
		n := min(len(ops), 100)
		if _, err := e.client.Txn(e.t.Context()).Then(ops[:n]...).Commit(); err != nil {
			e.t.Fatal(err)
		}
		ops = ops[n:]
	}
}

// flood writes and deletes keys that are nobody's.
func (e *endurance) flood() {
	var ops []clientv3.Op
	value := strings.Repeat("x", 1000)
	for i := range 1000 {
		ops = append(ops, clientv3.OpPut(fmt.Sprint("/registry/", i), value), clientv3.OpPut(fmt.Sprint(storePrefix, "other/", i), value))
	}
	e.transact(ops)
	e.transact([]clientv3.Op{clientv3.OpDelete("/registry/", clientv3.WithPrefix()), clientv3.OpDelete(storePrefix+"other/", clientv3.WithPrefix())})
}

// strangers writes leases of nodes that are not there, and deletes them when a host has them as peers. They are few: if most
// leases go, the store has lost them, and the peers are kept.
func (e *endurance) strangers() {
	var puts, deletes []clientv3.Op
	for i := range byte(4) {
		l := control.Lease{
			Subnet:      netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 5, 100 + i, 0}), 24),
			IPv6Subnet:  netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 0, 0, 5, 0, 0, 0xff, i}), 64),
			PublicIP:    netip.AddrFrom4([4]byte{192, 0, 2, 100 + i}),
			BackendType: control.BackendVXLAN,
		}
		l.Backend = control.VTEPData{VNI: 1, MAC: dataplane.MAC(l.PublicIP, 1)}
		puts = append(puts, clientv3.OpPut(subnets+l.Key(), string(l.Value())))
		deletes = append(deletes, clientv3.OpDelete(subnets+l.Key()))
		e.left = append(e.left, l.Subnet.Addr().String(), l.IPv6Subnet.Addr().String(), l.Backend.MAC.String(), l.PublicIP.String())
	}
	e.transact(puts)
	eventually(e.t, patience, "a route to another one", func() error {
		if e.members[0].Run("ip", "route", "show", "10.5.100.0/24") == "" {
			return errors.New("none")
		}
		return nil
	})
	e.transact(deletes)
}

// junk writes what is not a lease, and deletes it.
func (e *endurance) junk(m *member) {
	own, _, _ := strings.Cut(strings.TrimPrefix(m.key, subnets), "-")
	all := junkLeases(own)
	for _, j := range all {
		e.put(subnets+j.key, j.value)
	}
	time.Sleep(time.Second)
	for _, j := range all {
		e.delete(subnets + j.key)
	}
}
