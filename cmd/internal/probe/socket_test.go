package probe

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/overlayd/overlayd/dataplane/netnstest"
	"github.com/overlayd/overlayd/dataplane/rtnl"
)

// answersOf returns a channel of what a transport receives.
func answersOf(t *testing.T, s transport) <-chan answer {
	answers := make(chan answer, 16)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			a, err := s.receive()
			if err != nil {
				return
			}
			a.data = slices.Clone(a.data)
			answers <- a
		}
	}()
	t.Cleanup(func() { s.close(); <-done })
	return answers
}

// TestSocket: in both families, with a raw and a datagram socket, requests have source, size and TTL, and each kind of answer is
// understood, through a real router.
func TestSocket(t *testing.T) {
	t.Parallel()
	for _, plain := range []bool{false, true} {
		t.Run(fmt.Sprintf("plain=%v", plain), func(t *testing.T) {
			t.Parallel()
			h, far := &host{NS: netnstest.New(t), t: t}, netnstest.New(t)
			router := netnstest.LAN(t, "192.0.2.0/24", h.NS)
			netnstest.Number(router, "2001:db8::/64", h.NS)
			netnstest.Link(router, "far", far, "eth0")
			for _, a := range []string{"198.51.100.1/24", "2001:db8:f::1/64"} {
				router.Addr("far", a)
			}
			router.Run("ip", "link", "set", "far", "mtu", "1400")
			(&host{NS: router, t: t}).forward("1")
			h.Addr("lo", "10.9.9.9/32")
			h.Addr("lo", "fd09::9/128")
			if plain {
				h.Must(func() error { return rtnl.SetSysctl("net/ipv4/ping_group_range", "0\t0") })
			}
			// Neighbours that do not answer are given up sooner.
			h.Run("sysctl", "-qw", "net.ipv4.neigh.eth0.retrans_time_ms=50", "net.ipv6.neigh.eth0.retrans_time_ms=50")
			router.Run("ip", "route", "add", "10.9.9.9/32", "via", "192.0.2.2")
			router.Run("ip", "route", "add", "fd09::9/128", "via", "2001:db8::2")
			for v6, c := range map[bool]struct{ own, other, router, beyond, nobody string }{
				false: {"192.0.2.2", "10.9.9.9", "192.0.2.1", "198.51.100.9", "192.0.2.77"},
				true:  {"2001:db8::2", "fd09::9", "2001:db8::1", "2001:db8:f::9", "2001:db8::77"},
			} {
				s, err := h.openSocket(v6)
				if err != nil {
					t.Fatal(err)
				}
				if s.(*socket).plain != plain {
					t.Fatalf("plain is %v", s.(*socket).plain)
				}
				answers := answersOf(t, s)
				to := netip.MustParseAddr
				for i, try := range []struct {
					r    request
					want answer
				}{
					{request{from: to(c.own), to: to(c.router), size: 84}, answer{outcome: reply, from: to(c.router)}},
					{request{from: to(c.other), to: to(c.router), size: 1500}, answer{outcome: reply, from: to(c.router)}},
					{request{to: to(c.router), size: 84}, answer{outcome: reply, from: to(c.router)}},
					{request{from: to(c.own), to: to(c.beyond), size: 84, ttl: 1}, answer{outcome: expired, from: to(c.router), to: to(c.beyond)}},
					{request{from: to(c.own), to: to(c.beyond), size: 1450}, answer{outcome: tooBig, from: to(c.router), to: to(c.beyond), mtu: 1400}},
					{request{from: to(c.own), to: to(c.beyond), size: 1450}, answer{outcome: tooBig, from: to(c.router), to: to(c.beyond), mtu: 1400}},
					{request{from: to(c.own), to: to(c.nobody), size: 84}, answer{outcome: unreachable, from: to(c.own), to: to(c.nobody)}},
				} {
					try.r.seq, try.r.cookie = uint16(i+7), cookie{1, 2, 3, byte(i)}
					sum, err := s.send(&try.r)
					if err != nil {
						t.Errorf("%+v: %v", try.r, err)
						continue
					}
					try.want.seq = try.r.seq
					expect(t, answers, &try.r, sum, try.want)
				}
			}
		})
	}
}

// expect waits for the answer to r.
func expect(t *testing.T, answers <-chan answer, r *request, sum uint16, want answer) {
	t.Helper()
	deadline := time.After(10 * time.Second)
	for {
		select {
		case <-deadline:
			t.Errorf("no answer to %+v", r)
			return
		case a := <-answers:
			if a.outcome == junk || a.seq != r.seq {
				continue
			}
			if string(a.data) != string(r.cookie[:]) || a.outcome == reply && a.size != r.size-headers(r.to)+icmpHeader || a.outcome != reply && r.to.Is4() && a.sum != sum {
				t.Errorf("%+v: got %+v", r, a)
			}
			if a.sum, a.size, a.data = 0, 0, nil; fmt.Sprint(a) != fmt.Sprint(want) {
				t.Errorf("%+v: got %+v, want %+v", r, a, want)
			}
			return
		}
	}
}

// TestSocketIgnoresOthers: a raw socket does not see the replies that others get.
func TestSocketIgnoresOthers(t *testing.T) {
	t.Parallel()
	h := &host{NS: netnstest.New(t), t: t}
	for v6, local := range map[bool]string{false: "127.0.0.1", true: "::1"} {
		var sockets [2]transport
		var answers [2]<-chan answer
		for i := range sockets {
			s, err := h.openSocket(v6)
			if err != nil {
				t.Fatal(err)
			}
			sockets[i], answers[i] = s, answersOf(t, s)
		}
		r := &request{to: netip.MustParseAddr(local), size: 100, seq: 3, cookie: cookie{9}}
		for range 3 {
			if _, err := sockets[0].send(r); err != nil {
				t.Fatal(err)
			}
			expect(t, answers[0], r, 0, answer{outcome: reply, from: r.to, seq: 3})
		}
		if n := len(answers[1]); n > 0 {
			t.Errorf("%d answers to another", n)
		}
	}
}

// TestSendErrors: what this host refuses is an error, and no later request pays for it.
func TestSendErrors(t *testing.T) {
	t.Parallel()
	h := &host{NS: netnstest.New(t), t: t}
	s, err := h.openSocket(false)
	if err != nil {
		t.Fatal(err)
	}
	answers := answersOf(t, s)
	local := netip.MustParseAddr("127.0.0.1")
	for name, r := range map[string]request{
		"no route":       {to: netip.MustParseAddr("203.0.113.1"), size: 84},
		"foreign source": {from: netip.MustParseAddr("203.0.113.1"), to: local, size: 84},
		"too large":      {to: local, size: 65600},
	} {
		if _, err := s.send(&r); err == nil || fixOf(err) == "" {
			t.Errorf("%s: %v", name, err)
		}
		good := &request{from: local, to: local, size: 84, seq: 9}
		if _, err := s.send(good); err != nil {
			t.Errorf("after %s: %v", name, err)
		}
		expect(t, answers, good, 0, answer{outcome: reply, from: local, seq: 9})
	}
}
