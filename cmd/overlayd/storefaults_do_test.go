package main

import (
	"context"
	"fmt"
	"os"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/overlayd/overlayd/control/etcd/etcdtest"
)

func (s *storeTest) faultLasts() time.Duration {
	return durationFrom(s.t, "OVERLAYD_FAULT", 3*time.Second)
}

// lasts lets the fault last.
func (s *storeTest) lasts() { time.Sleep(s.faultLasts()) }

// wipe replaces etcd by an empty one.
func (s *storeTest) wipe() {
	s.etcd.Wipe(s.t)
	s.configure()
}

// changeHands takes a subnet from a host, and gives it to one that joins, after a snapshot.
func (s *storeTest) changeHands() {
	s.t.Helper()
	s.snapshot = s.etcd.Snapshot(s.t)
	owner, taker := s.hosts[2], s.hosts[3]
	subnet := owner.gateway()
	p := owner.overlayd(append([]string{"lease", "revoke", subnet.Masked().String(), "--etcd-endpoints", s.url}, s.user()...)...)
	if code := p.wait(patience); code != 0 {
		s.t.Fatalf("exit code %d:\n%s", code, p.text())
	}
	eventually(s.t, patience, "another subnet", func() error {
		if owner.gateway() == subnet {
			return fmt.Errorf("it has %s", subnet)
		}
		return nil
	})
	earlier := fmt.Sprintf("FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=%s\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=false\n", subnet)
	if err := os.WriteFile(taker.subnetFile, []byte(earlier), 0o600); err != nil {
		s.t.Fatal(err)
	}
	s.join(taker, modeUserspace)
	if got := taker.gateway(); got != subnet {
		s.t.Fatalf("%s has %s, want %s", taker.name, got, subnet)
	}
}

// fill leaves etcd no space for a time.
func (s *storeTest) fill() {
	etcdtest.Alarm(s.t, s.client, pb.AlarmRequest_ACTIVATE, pb.AlarmType_NOSPACE)
	s.lasts()
	etcdtest.Alarm(s.t, s.client, pb.AlarmRequest_DEACTIVATE, pb.AlarmType_NOSPACE)
}

// blackHole lets nothing of the hosts reach etcd for a time.
func (s *storeTest) blackHole() {
	s.under.Run("nft", `table inet hole { chain in { type filter hook input priority 0; iifname "br0" tcp dport 2379-2381 drop; }; }`)
	s.lasts()
	s.under.Run("nft", "delete", "table", "inet", "hole")
}

// away makes etcd far away. It stays so.
func (s *storeTest) away() {
	s.relay.delay.Store(int64(500 * time.Millisecond))
	s.lasts()
}

// killLeaders kills the leader every few seconds and starts it again, while twenty nodes come and go.
func (s *storeTest) killLeaders() {
	s.t.Helper()
	for began, i := time.Now(), 0; time.Since(began) < s.faultLasts(); i++ {
		s.etcd.KillLeader(s.t)
		for n := range 20 {
			s.guest(n, i%2 == 0)
		}
		s.etcd.Run(s.t)
		time.Sleep(s.faultLasts() / 6) // the fault's rate
	}
}

// guest writes the lease of a node that is not there, or deletes it. It takes as long as an election.
func (s *storeTest) guest(n int, comes bool) {
	s.t.Helper()
	key := fmt.Sprintf("%s10.5.%d.0-24", subnets, 100+n)
	if s.isHeld(key) {
		return
	}
	value := fmt.Sprintf(`{"PublicIP":"192.0.2.%d","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"0e:00:00:00:01:%02x"}}`, 100+n, n)
	eventually(s.t, patience, "etcd takes a write", func() error {
		ctx, cancel := context.WithTimeout(s.t.Context(), 2*time.Second)
		defer cancel()
		var err error
		if comes {
			_, err = s.client.Put(ctx, key, value)
		} else {
			_, err = s.client.Delete(ctx, key)
		}
		return err
	})
}
