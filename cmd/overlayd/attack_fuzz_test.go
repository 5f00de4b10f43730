package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"
)

// fuzzer makes entries that nearly are leases.
type fuzzer struct {
	*rand.Rand
	hosts []string // "192.0.2.2"
	own   []string // subnets of hosts: 10.5.1.0
	macs  []string
}

func pick[T any](f *fuzzer, all ...T) T { return all[f.IntN(len(all))] }

func (f *fuzzer) key() string {
	n := f.IntN(190) + 64
	own := pick(f, f.own...)
	return pick(f,
		fmt.Sprintf("10.5.%d.0-24", n), fmt.Sprintf("10.5.%d.0-%d", n, f.IntN(40)), fmt.Sprintf("10.5.%d.0-24&fd10::%x:0-112", n, f.IntN(1<<16)),
		own+"-25", own+"-23", own+"-24&fd10::-64", "0.0.0.0-0", "0.0.0.0-1", "128.0.0.0-1", "0.0.0.0-0&::-0", "0.0.0.0-0&8000::-1", "127.0.0.0-8", "224.0.0.0-4", "192.0.2.0-24", "192.0.2.1-32",
		"169.254.0.0-16", "10.5.0.0-16", "10.5.128.0-17", "10.0.0.0-8", own+"-24 ", " "+own+"-24", own+"-024", own+"/24", own+"-24/x", own+"-24\x00", "\xff\xfe", "", "/", "../"+own+"-24",
		fmt.Sprintf("10.5.%d.0-24%s", n, strings.Repeat("x", f.IntN(600))), "10.5."+strings.Repeat("9", 300)+".0-24", "१०.5.1.0-24", own+"-24%eth0", "0.0.0.0-0&fe80::-10", "0.0.0.0-0&ff00::-8", "::ffff:"+own+"-120")
}

func (f *fuzzer) ip() string {
	return pick(f, append([]string{fmt.Sprintf("192.0.2.%d", 100+f.IntN(100)), "192.0.2.1", "192.0.2.0", "192.0.2.255", "255.255.255.255", "0.0.0.0", "127.0.0.1", "224.0.0.1", "169.254.169.254", "169.254.1.1",
		"240.0.0.1", "10.5.64.1", "10.5.255.255", "8.8.8.8", "::1", "fe80::1%eth0", "::ffff:192.0.2.2", "192.0.2.2 ", "0x7f000001", "2130706433", "192.0.2.002", "192.0.2", "", "\x00", strings.Repeat("1", 5000), "２.0.0.1"}, f.hosts...)...)
}

func (f *fuzzer) mac() string {
	return pick(f, append([]string{fmt.Sprintf("0e:00:00:00:%02x:%02x", f.IntN(256), f.IntN(256)), "00:00:00:00:00:00", "ff:ff:ff:ff:ff:ff", "01:00:5e:00:00:01", "33:33:00:00:00:01", "0E-00-00-00-00-01", "0e00.0000.0001",
		"00:00:00:00:fe:80:00:00:00:00:00:00:02:00:5e:10:00:00:00:01", "02:00:5e:10:00:00:00:01", "", "x", strings.Repeat("0e:", 3000)}, f.macs...)...)
}

func (f *fuzzer) number() string {
	return pick(f, "1", "1", "1", "1", "0", "-1", "16777215", "16777216", "4294967297", "1e0", "1.0", "1e400", "-0", "18446744073709551617", strings.Repeat("9", 5000), `"1"`, "null", "true", "[]", "{}", "[1]")
}

// mutate spoils some bytes.
func (f *fuzzer) mutate(s string) string {
	b := []byte(s)
	for range f.IntN(4) {
		if len(b) == 0 {
			return s
		}
		i := f.IntN(len(b))
		switch f.IntN(6) {
		case 0:
			b[i] = byte(f.IntN(256))
		case 1:
			b = b[:i]
		case 2:
			b = append(b[:i:i], append([]byte(pick(f, "\x00", "\xff\xfe", "\u202e", `\u0000`, `\ud800`, "\x1b[2J", "\n", `"`, "{", "}}", strings.Repeat("[", 9000), strings.Repeat(`{"a":`, 2000))), b[i:]...)...)
		case 3:
			j := f.IntN(len(b))
			b[i], b[j] = b[j], b[i]
		case 4:
			b = append(b, b[i:]...)
		}
	}
	return string(b)
}

func (f *fuzzer) value() string {
	data := fmt.Sprintf(`{"VNI":%s,"VtepMAC":%q}`, f.number(), f.mac())
	v := fmt.Sprintf(`{"PublicIP":%q,"PublicIPv6":%s,"BackendType":%q,"BackendData":%s%s}`, f.ip(), pick(f, "null", "null", "null", fmt.Sprintf("%q", f.ip()), "1"),
		pick(f, "vxlan", "vxlan", "vxlan", "vxlan", "VXLAN", "host-gw", "alloc", "udp", "wireguard", "extension", "", strings.Repeat("t", f.IntN(400)), "vx\x00lan"),
		pick(f, data, data, data, data, "null", "[]", `"x"`, `{"VNI":1,"VNI":2,"VtepMAC":"x","VtepMAC":`+fmt.Sprintf("%q", f.mac())+`}`),
		pick(f, "", "", "", `,"PublicIP":"192.0.2.2"`, `,"publicip":"192.0.2.3"`, `,"BackendV6Data":`+data, `,"x":`+strings.Repeat("[", 5000)+strings.Repeat("]", 5000)))
	if f.IntN(3) == 0 {
		return f.mutate(v)
	}
	return v
}

func (f *fuzzer) record() (key, value string) {
	key = storePrefix + "overlayd/nodes/" + pick(f, f.ip(), f.ip(), f.ip()+"/"+fmt.Sprintf("%x", f.Uint64()), f.key())
	value = fmt.Sprintf(`{"id":%q,"name":%q,"boot":"x","netns":%s,"v":%s,"src4":%q,"src6":%q,"state":"running","start":"x"}`, pick(f, "", "a", strings.Repeat("i", 3000)), pick(f, "n", "\x1b[2J", "\u202e", strings.Repeat("n", 3000)),
		f.number(), f.number(), f.ip(), f.ip())
	if f.IntN(2) == 0 {
		value = fmt.Sprintf(`{"id":"x","name":"evil%d","v":1,"src4":%q}`, f.IntN(1000), f.ip())
	}
	if f.IntN(4) == 0 {
		value = f.mutate(value)
	}
	return key, value
}

func (f *fuzzer) op() clientv3.Op {
	put := func(key, value string) clientv3.Op {
		if f.IntN(6) == 0 {
			return clientv3.OpDelete(key)
		}
		return clientv3.OpPut(key, value)
	}
	switch f.IntN(10) {
	case 0, 1:
		k, v := f.record()
		return put(k, v)
	case 2:
		return put(storePrefix+"overlayd/revoked/"+f.key(), pick(f, "", f.value()))
	case 3:
		return put(storePrefix+pick(f, "overlayd/"+f.mutate("x"), "x", f.mutate("networks/config"), "net/subnets/"+f.key(), "overlayd"), f.value())
	}
	return put(subnets+f.key(), f.value())
}

// TestAttackFuzz: entries that nearly are leases, records and marks, at speed, cost no datagram, and a good lease is used meanwhile.
func TestAttackFuzz(t *testing.T) {
	for _, modes := range [][2]string{{modeKernel, modeUserspace}, {modeUserspace, modeKernel}} {
		t.Run(modes[0], func(t *testing.T) {
			c := newLooseCluster(t, 2)
			c.put(storePrefix+"config", testNetwork)
			a, b := c.upPair(modes, "--metrics-port=9799", "--ip-masq")
			seed := uint64(time.Now().UnixNano())
			fmt.Sscan(os.Getenv("ATTACK_SEED"), &seed)
			t.Logf("seed %d", seed)
			f := &fuzzer{Rand: rand.New(rand.NewPCG(seed, 1))}
			honest := map[string]bool{}
			var values []string
			for _, h := range c.hosts {
				honest[h.key()] = true
				values = append(values, c.get(h.key()))
				f.hosts = append(f.hosts, h.addr.String())
				f.own = append(f.own, h.gateway().Masked().Addr().String())
				f.macs = append(f.macs, vtepMAC(c.get(h.key())))
			}
			there, back := startMeters(t, a, b)
			said := make([]int, 2)
			for i, h := range c.hosts {
				said[i] = len(h.daemon.text())
			}
			began := time.Now()
			for time.Since(began) < durationFrom(t, "ATTACK_TIME", 25*time.Second) {
				var ops []clientv3.Op
				seen := map[string]bool{}
				for range f.IntN(60) + 1 {
					op := f.op()
					k := string(op.KeyBytes())
					if honest[k] || seen[k] || strings.HasPrefix(k, storePrefix+"overlayd/nodes/192.0.2.2") || strings.HasPrefix(k, storePrefix+"overlayd/nodes/192.0.2.3") {
						continue
					}
					seen[k] = true
					ops = append(ops, op)
				}
				if _, err := c.client.Txn(t.Context()).Then(ops...).Commit(); err != nil {
					t.Fatal(err)
				}
				if f.IntN(20) == 0 {
					if took := c.hosts[0].learns(63); took > 200*time.Millisecond {
						t.Errorf("a lease was used after %s", took)
					}
				}
			}
			took := time.Since(began)
			if lost := there.finish() + back.finish(); lost > 0 {
				t.Errorf("%d datagrams lost", lost)
			}
			for i, h := range c.hosts {
				lines := strings.Count(h.daemon.text()[said[i]:], "\n")
				t.Logf("%s: %d lines in %s, %d kB, %d bytes of log", modes[i], lines, took, h.daemon.peak(), len(h.daemon.text())-said[i])
				if float64(lines) > 100*(1+took.Minutes()) {
					t.Errorf("%d lines", lines)
				}
				if h.daemon.peak() > maxResident {
					t.Errorf("%d kB", h.daemon.peak())
				}
				if got := c.get(h.key()); got != values[i] {
					t.Errorf("lease %s, was %s", got, values[i])
				}
			}
			for i, h := range c.hosts {
				h.daemon.stop(unix.SIGKILL)
				h.up("--dataplane", modes[i])
				if got := c.get(h.key()); vtepMAC(got) != f.macs[i] {
					t.Errorf("lease %s, was %s", got, values[i])
				}
			}
			warmUp(t, a, b)
		})
	}
}

// TestAttackLongNames: keys below the prefix with names that are as long as is looked at.
func TestAttackLongNames(t *testing.T) {
	n := int(numberFrom(t, "ATTACK_N", 200_000))
	c := newLooseCluster(t, 2)
	c.put(storePrefix+"config", testNetwork)
	a, b := c.upPair([2]string{modeKernel, modeUserspace})
	there, back := startMeters(t, a, b)
	h := c.hosts[0]
	name := strings.Repeat("x", 240)
	began := time.Now()
	slowest := h.slowestBeside(n, func(i int) clientv3.Op { return clientv3.OpPut(fmt.Sprintf("%s%06d-%s", subnets, i, name), "junk") })
	t.Logf("%d in %s: slowest %s", n, time.Since(began), slowest)
	if lost := there.finish() + back.finish(); lost > 0 {
		t.Errorf("%d datagrams lost", lost)
	}
	modes := []string{modeKernel, modeUserspace}
	for i, h := range c.hosts {
		peak := h.daemon.peak()
		h.daemon.stop(unix.SIGTERM)
		h.up("--dataplane", modes[i])
		t.Logf("%s: %d kB, restart %d kB", modes[i], peak, h.daemon.peak())
		if max(peak, h.daemon.peak()) > maxResident {
			t.Errorf("%s: %d kB, restart %d kB", modes[i], peak, h.daemon.peak())
		}
	}
	warmUp(t, a, b)
}

// TestAttackManyOwn: many entries with the address of a node keep it from no restart, and are few lines.
func TestAttackManyOwn(t *testing.T) {
	for _, kind := range []string{"fits"} {
		t.Run(kind, func(t *testing.T) {
			n := int(numberFrom(t, "ATTACK_N", 20_000))
			c := newLooseCluster(t, 2)
			c.put(storePrefix+"config", `{"Network":"10.0.0.0/8","SubnetLen":28,"SubnetMax":"10.5.63.0","Backend":{"Type":"vxlan"}}`)
			a, b := c.upPair([2]string{modeKernel, modeUserspace})
			h := c.hosts[0]
			before := h.gateway()
			there, back := startMeters(t, a, b)
			for i := 0; i < n; i += 100 {
				var ops []clientv3.Op
				for j := i; j < i+100; j++ {
					key := map[string]string{"fits": fmt.Sprintf("10.1.%d.%d-28", j>>4&0xff, j&0xf*16), "outside": fmt.Sprintf("10.%d.%d.%d-28", 6+j>>12, j>>4&0xff, j&0xf*16), "live": fmt.Sprintf("10.%d.%d.%d-28", 6+j>>12, j>>4&0xff, j&0xf*16),
						"both families": fmt.Sprintf("10.1.1.0-28&fd00::%x:0-112", j)}[kind]
					if k := subnets + key; k != h.key() && k != c.hosts[1].key() {
						ops = append(ops, clientv3.OpPut(k, vxlanValue("192.0.2.2", "0e:00:00:00:02:02")))
					}
				}
				if _, err := c.client.Txn(t.Context()).Then(ops...).Commit(); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(time.Second)
			if lost := there.finish() + back.finish(); lost > 0 {
				t.Errorf("%d datagrams lost", lost)
			}
			t.Logf("%d lines, %d kB", strings.Count(h.daemon.text(), "\n"), h.daemon.peak())
			h.daemon.stop(unix.SIGTERM)
			began := time.Now()
			h.up("--dataplane", modeKernel)
			t.Logf("ready after %s with %d lines, %d kB, subnet %s, was %s", time.Since(began), strings.Count(h.daemon.text(), "\n"), h.daemon.peak(), h.gateway(), before)
			if n := strings.Count(h.daemon.text(), "\n"); n > 100 {
				t.Errorf("%d lines", n)
			}
			if h.gateway() != before {
				t.Errorf("subnet %s, was %s", h.gateway(), before)
			}
			if h.daemon.peak() > maxResident {
				t.Errorf("%d kB", h.daemon.peak())
			}
			r, err := c.client.Get(t.Context(), subnets, clientv3.WithPrefix(), clientv3.WithCountOnly())
			t.Logf("%d entries are left, %v", r.Count, err)
			warmUp(t, a, b)
		})
	}
}

// TestAttackOverwritten: a lease that somebody has written over is right again soon.
func TestAttackOverwritten(t *testing.T) {
	for _, mode := range []string{modeKernel, modeUserspace} {
		t.Run(mode, func(t *testing.T) {
			c := newLooseCluster(t, 2)
			c.put(storePrefix+"config", testNetwork)
			a, b := c.upPair([2]string{mode, modeUserspace})
			h := c.hosts[0]
			was := c.get(h.key())
			for _, v := range []string{vxlanValue("192.0.2.2", "0e:00:00:00:02:02"), vxlanValue("192.0.2.2", vtepMAC(c.get(c.hosts[1].key()))), "junk", vxlanValue("192.0.2.3", vtepMAC(c.get(c.hosts[1].key())))} {
				there, back := startMeters(t, a, b)
				waitTraffic(t, there, 50)
				began := time.Now()
				c.put(h.key(), v)
				for c.get(h.key()) != was && time.Since(began) < 3*time.Second {
					time.Sleep(time.Millisecond)
				}
				took := time.Since(began)
				time.Sleep(500 * time.Millisecond)
				t.Logf("%.60s: right after %s; %d %d lost", v, took, there.finish(), back.finish())
				if c.get(h.key()) != was {
					t.Errorf("%s", c.get(h.key()))
					break
				}
			}
		})
	}
}

// TestAttackReservation: an entry without an etcd lease that somebody writes in a node's name does not take its pods off the overlay at its next start.
func TestAttackReservation(t *testing.T) {
	for _, how := range []string{"restart", "session", "expiring"} {
		t.Run(how, func(t *testing.T) {
			c := newLooseCluster(t, 2)
			c.put(storePrefix+"config", testNetwork)
			a, b := c.upPair([2]string{modeKernel, modeUserspace})
			h := c.hosts[0]
			before := h.gateway()
			key, value := subnets+"10.5.63.0-24", vxlanValue("192.0.2.2", "0e:00:00:00:02:02")
			if how == "expiring" {
				l, err := c.client.Grant(t.Context(), 3600)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := c.client.Put(t.Context(), key, value, clientv3.WithLease(l.ID)); err != nil {
					t.Fatal(err)
				}
			} else {
				c.put(key, value)
			}
			time.Sleep(time.Second)
			if how == "session" {
				c.put(storePrefix+"config", strings.Replace(testNetwork, `{`, `{"EnableNFTables":true,`, 1))
				h.waitSessions(2)
			} else {
				h.daemon.stop(unix.SIGTERM)
				h.up("--dataplane", modeKernel)
			}
			if h.gateway() != before {
				t.Errorf("subnet %s, was %s", h.gateway(), before)
			}
			if err := echoWithin(a.NS, b.addr, 56, 5*time.Second); err != nil {
				t.Error(err)
			}
		})
	}
}
