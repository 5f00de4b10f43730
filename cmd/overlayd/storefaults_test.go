package main

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/overlayd/overlayd/control/etcd/etcdtest"
)

// storeFault does something to etcd, and returns when it is over.
type storeFault struct {
	name    string
	auth    bool // needs users
	expires bool // leases have half the time that the fault lasts
	far     bool // etcd is reached through a relay
	members int
	before  func(s *storeTest) // what happens before the traffic is measured; nil: nothing
	do      func(s *storeTest)
}

func storeFaults(path string) []storeFault {
	return []storeFault{
		{name: "restart", do: func(s *storeTest) { s.etcd.Restart(s.t) }},
		{name: "wipe", do: (*storeTest).wipe},
		{name: "older snapshot", before: (*storeTest).changeHands, do: func(s *storeTest) { s.etcd.Restore(s.t, s.snapshot) }},
		{name: "no space", expires: true, do: (*storeTest).fill},
		// From 3.7 on etcd keeps no lease alive for a user who may not write.
		{name: "no right to write", auth: true, expires: path != "", do: func(s *storeTest) {
			s.write(false)
			s.lasts()
			s.write(true)
		}},
		{name: "other password", auth: true, do: func(s *storeTest) {
			s.etcd.SetPassword(s.t, "other")
			s.lasts()
			s.etcd.SetPassword(s.t, etcdtest.User)
		}},
		{name: "black hole", do: (*storeTest).blackHole},
		{name: "half a second each way", far: true, do: (*storeTest).away},
		{name: "leaders killed", members: 3, do: (*storeTest).killLeaders},
	}
}

// TestStoreFaults: whatever happens to etcd, daemons that stay keep their subnets and every packet, and 10 s after its end
// they have a new peer and are ready. OVERLAYD_FAULT=60s has all faults, which last that long if they last;
// without it the fastest is done.
func TestStoreFaults(t *testing.T) {
	t.Parallel()
	testStoreFaults(t, "", "restart, users false")
}

// testStoreFaults does those faults, of all, whose names are given, if OVERLAYD_FAULT is not set.
func testStoreFaults(t *testing.T, path string, few ...string) {
	all := os.Getenv("OVERLAYD_FAULT") != ""
	for _, fault := range storeFaults(path) {
		for _, auth := range []bool{false, true} {
			name := fmt.Sprintf("%s, users %v", fault.name, auth)
			if fault.auth && !auth || !all && !strings.Contains(strings.Join(few, ";"), name) {
				continue
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				s := newStoreTest(t, path, fault, auth)
				fault.do(s)
				s.recovers()
			})
		}
	}
}

// storeTest is an etcd that faults are done to, and daemons that use it.
type storeTest struct {
	*cluster
	etcd     *etcdtest.Etcd
	auth     bool
	write    func(may bool) // with users
	ttl      time.Duration
	snapshot string
	keys     map[*host]string // of those who stay, with the value
	values   map[*host]string
	relay    *relay
	meters   meters
}

func newStoreTest(t *testing.T, path string, fault storeFault, auth bool) *storeTest {
	s := &storeTest{cluster: newHosts(t, []string{under4}, 4), auth: auth, ttl: 24 * time.Hour, keys: map[*host]string{}, values: map[*host]string{}}
	if fault.expires {
		s.ttl = max(s.faultLasts()/2, 5*time.Second).Truncate(time.Second)
	}
	s.startMembers(path, max(fault.members, 1))
	s.configure()
	if fault.far {
		s.relay = newRelay(t, s.under, netip.MustParseAddrPort("192.0.2.1:4379"), netip.MustParseAddrPort("192.0.2.1:2379"))
		s.url = "http://192.0.2.1:4379"
	}
	for i, mode := range []string{modeKernel, modeUserspace, modeKernel} {
		s.join(s.hosts[i], mode)
	}
	a, b := s.hosts[0].pod(0, 0), s.hosts[1].pod(0, 0)
	warmUp(t, a, b)
	if fault.before != nil {
		fault.before(s)
	}
	for _, h := range s.hosts {
		if h.daemon != nil {
			s.keys[h] = h.key()
			s.values[h] = s.get(s.keys[h])
		}
	}
	for _, way := range [][2]*pod{{a, b}, {b, a}} {
		m, err := startMeter(way[0].NS, way[1].NS, way[1].addr, 10*time.Millisecond)
		if err != nil {
			t.Fatal(err)
		}
		s.meters = append(s.meters, m)
	}
	return s
}

// startMembers runs etcd where the hosts reach it.
func (s *storeTest) startMembers(path string, n int) {
	s.t.Helper()
	m := etcdtest.Members{Path: path}
	for i := range n {
		m.Dirs = append(m.Dirs, s.t.TempDir())
		m.Peers = append(m.Peers, fmt.Sprint("http://192.0.2.1:", 3380+i))
		m.Clients = append(m.Clients, fmt.Sprint("http://192.0.2.1:", 2379+i))
	}
	s.url = strings.Join(m.Clients, ",")
	s.etcd = &etcdtest.Etcd{Members: m, Prefix: strings.TrimSuffix(storePrefix, "/"), In: s.under.Do, Connected: func(c *clientv3.Client) { s.client = c }}
	s.etcd.Run(s.t)
}

// configure writes what an empty etcd needs.
func (s *storeTest) configure() {
	s.t.Helper()
	s.put(storePrefix+"config", testNetwork)
	if s.auth {
		s.write = s.etcd.Allow(s.t)
	}
}

// user is how a program says who it is.
func (s *storeTest) user() []string {
	if !s.auth {
		return nil
	}
	return []string{"--etcd-username", etcdtest.User, "--etcd-password", etcdtest.User}
}

// join starts a host's daemon.
func (s *storeTest) join(h *host, mode string) {
	s.t.Helper()
	h.up(append([]string{"--dataplane", mode, "--lease-ttl", s.ttl.String(), "--healthz-ip", "127.0.0.1", "--healthz-port", "8081"}, s.user()...)...)
}

// recovers checks that etcd is used again at once, and that nobody has lost anything.
func (s *storeTest) recovers() {
	s.t.Helper()
	began := now(s.t)
	free := 200
	for s.isHeld(fmt.Sprintf("%s10.5.%d.0-24", subnets, free)) {
		free++
	}
	subnet := fmt.Sprintf("10.5.%d.0/24", free)
	value := `{"PublicIP":"192.0.2.200","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"0e:00:00:00:02:c8"}}`
	s.put(fmt.Sprintf("%s10.5.%d.0-24", subnets, free), value)
	for h := range s.keys {
		eventually(s.t, patience, h.name+" has the new peer and is ready", func() error { return s.usesEtcd(h, subnet) })
	}
	for h, key := range s.keys {
		eventually(s.t, patience, h.name+" has its lease in etcd", func() error { return s.leased(key, s.values[h]) })
	}
	took := began.passed(s.t)
	if took > promised(10*time.Second) {
		s.t.Errorf("back after %s, want 10s", took)
	}
	for h, key := range s.keys {
		if now := h.key(); now != key {
			s.t.Errorf("%s has %s, had %s", h.name, now, key)
		}
	}
	for _, m := range s.meters {
		waitTraffic(s.t, m, 10)
	}
	lost := s.meters.finish()
	s.t.Logf("back after %s, %d datagrams lost", took.Round(10*time.Millisecond), lost)
	if lost > 0 {
		s.t.Errorf("%d datagrams lost", lost)
	}
}

// isHeld reports whether one who stays has a lease with that key.
func (s *storeTest) isHeld(key string) bool {
	return slices.Contains(slices.Collect(maps.Values(s.keys)), key)
}

// usesEtcd checks that a daemon has a peer, and no fault.
func (s *storeTest) usesEtcd(h *host, peer string) error {
	if !strings.Contains(h.daemon.text(), `msg="peer added" subnet=`+peer) {
		return errors.New("no such peer")
	}
	if got := get(s.t, h, "127.0.0.1:8081", "/readyz"); !strings.HasPrefix(got, "200") {
		return errors.New(got)
	}
	return nil
}

// leased checks that an entry is in etcd, and ends with its node.
func (s *storeTest) leased(key, value string) error {
	r, err := s.client.Get(s.t.Context(), key)
	if err != nil {
		return err
	}
	if len(r.Kvs) != 1 || string(r.Kvs[0].Value) != value || r.Kvs[0].Lease == 0 {
		return fmt.Errorf("entries %v, want %s", r.Kvs, value)
	}
	left, err := s.client.TimeToLive(s.t.Context(), clientv3.LeaseID(r.Kvs[0].Lease))
	if err == nil && left.TTL <= 0 {
		err = fmt.Errorf("%d s left", left.TTL)
	}
	return err
}
