package etcd_test

import (
	"fmt"
	"os"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/overlayd/overlayd/control/etcd/etcdtest"
)

// faultLasts is how long a fault lasts that lasts. OVERLAYD_FAULT is another time, such as 60s.
func faultLasts(t *testing.T) time.Duration {
	text := os.Getenv("OVERLAYD_FAULT")
	if text == "" {
		return 3 * time.Second
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("OVERLAYD_FAULT: %v", err)
	}
	return d
}

// etcdFault does something to etcd, and returns when it is over.
type etcdFault struct {
	name    string
	auth    bool // needs users
	long    bool // only with OVERLAYD_FAULT
	slow    bool // and of this module's own etcd too
	expires bool // leases have half the time that the fault lasts; else a day
	members int
	soon    time.Duration // within which etcd is used again; 0: 10 s
	do      func(f *faulty)
}

func etcdFaults(path string) []etcdFault {
	return []etcdFault{
		{name: "restart", do: func(f *faulty) { f.Restart(f.t) }},
		{name: "wipe", do: (*faulty).wiped},
		{name: "older snapshot", soon: 12 * time.Second, do: (*faulty).restored}, // 11 s show whether a former holder lives
		{name: "no space", expires: true, do: func(f *faulty) {
			etcdtest.Alarm(f.t, f.client, pb.AlarmRequest_ACTIVATE, pb.AlarmType_NOSPACE)
			f.lasts()
			etcdtest.Alarm(f.t, f.client, pb.AlarmRequest_DEACTIVATE, pb.AlarmType_NOSPACE)
		}},
		// From 3.7 on etcd keeps no lease alive for a user who may not write.
		{name: "no right to write", auth: true, expires: path != "", do: func(f *faulty) {
			f.write(false)
			f.lasts()
			f.write(true)
		}},
		{name: "other password", auth: true, do: (*faulty).otherPassword},
		{name: "black hole", long: true, do: (*faulty).blackHole},
		{name: "half a second each way", slow: true, do: (*faulty).far},
		{name: "leaders killed", members: 3, slow: true, do: (*faulty).leadersKilled},
	}
}

// TestFaults: whatever happens to etcd, hosts that stay keep their subnets and each other, and 10 s after its end another
// one joins and is seen by all.
func TestFaults(t *testing.T) { testFaults(t, "") }

func testFaults(t *testing.T, path string) {
	all := os.Getenv("OVERLAYD_FAULT") != ""
	for _, fault := range etcdFaults(path) {
		for _, auth := range []bool{false, true} {
			costly := path == "" && (auth || fault.slow) // a busy machine has few seconds for this module's own etcd
			if fault.auth && !auth || (costly || fault.long) && !all {
				continue
			}
			t.Run(fmt.Sprintf("%s, users %v", fault.name, auth), func(t *testing.T) {
				t.Parallel()
				f := newFaulty(t, path, fault, auth)
				fault.do(f)
				f.recovers()
			})
		}
	}
}

// faulty is an etcd that faults are done to, and hosts that use it.
type faulty struct {
	*process
	t     *testing.T
	auth  bool
	write func(may bool)
	stay  []*resident
	next  int // number of the next host
	soon  time.Duration
}

func newFaulty(t *testing.T, path string, fault etcdFault, auth bool) *faulty {
	f := &faulty{process: newProcess(t, path, max(fault.members, 1)), t: t, auth: auth, next: 1, soon: fault.soon}
	f.SetConfig(t, []byte(config))
	if auth {
		f.write = f.allow(t)
	}
	if fault.expires {
		f.cfg.LeaseTTL, f.cfg.NodeTTL = max(faultLasts(t)/2, 2*time.Second).Truncate(time.Second), 3*time.Second
	}
	for range 3 {
		f.stay = append(f.stay, f.join())
	}
	f.see(f.stay)
	return f
}

// lasts lets the fault last.
func (f *faulty) lasts() { time.Sleep(faultLasts(f.t)) }

func (f *faulty) wiped() {
	f.Wipe(f.t)
	f.SetConfig(f.t, []byte(config))
	if f.auth {
		f.allow(f.t)
	}
}

// restored restores a snapshot in which one who stays has a subnet that another has by now.
func (f *faulty) restored() {
	f.t.Helper()
	snapshot := f.Snapshot(f.t)
	owner := f.stay[0]
	was := owner.subnet
	eventually(f.t, "a subnet is revoked", func() bool {
		_, err := f.open(f.t).Revoke(f.t.Context(), was.String())
		return err == nil
	})
	eventually(f.t, "another subnet", func() bool { l, held := leaseOf(owner.ctl); return held && l.Subnet != was })
	l, _ := leaseOf(owner.ctl)
	owner.subnet = l.Subnet
	taker := f.join(was)
	if taker.subnet != was {
		f.t.Fatalf("it has %s, want %s", taker.subnet, was)
	}
	f.stay = append(f.stay, taker)
	f.see(f.stay)
	f.Restore(f.t, snapshot)
}

func (f *faulty) otherPassword() {
	f.SetPassword(f.t, "other")
	f.lasts()
	f.SetPassword(f.t, etcdtest.User)
}

func (f *faulty) blackHole() {
	for _, p := range f.proxies {
		p.hole.Store(true)
		p.freeze()
	}
	f.lasts()
	for _, p := range f.proxies {
		p.hole.Store(false)
	}
}

// far makes etcd far away; it stays so.
func (f *faulty) far() {
	for _, p := range f.proxies {
		p.delay.Store(int64(500 * time.Millisecond))
		p.cut()
	}
	f.lasts()
}

// leadersKilled kills the leader every few seconds and starts it again, while hosts come and go.
func (f *faulty) leadersKilled() {
	begin := time.Now()
	var guests []*resident
	for {
		f.KillLeader(f.t)
		for range 5 {
			guests = append(guests, f.join())
		}
		f.Run(f.t)
		if len(guests) > 15 {
			for _, g := range guests[:5] {
				g.end()
			}
			guests = guests[5:]
		}
		if time.Since(begin) > faultLasts(f.t) {
			return
		}
		time.Sleep(faultLasts(f.t) / 6) // the fault's rate
	}
}
