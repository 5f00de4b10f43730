package controller_test

import (
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/controller"
	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/encap"
)

// dualPlane has VTEPs of the given families, as "46".
type dualPlane struct {
	*recorder
	families string
}

func (d dualPlane) VTEPs() []dataplane.VTEP {
	var v []dataplane.VTEP
	for _, f := range d.families {
		a := publicIP(1)
		if f == '6' {
			a = publicIPv6(1)
		}
		v = append(v, dataplane.VTEP{Addr: a, MAC: dataplane.MAC(a, 1), VNI: 1})
	}
	return v
}

func publicIPv6(i int) netip.Addr { return netip.MustParseAddr(fmt.Sprintf("fd99::%d", i)) }

// TestControllerByFamily: what the dataplane and the subnet file are told, by the
// families of the network and of the underlay.
func TestControllerByFamily(t *testing.T) {
	const (
		net4, net6 = `"Network":"10.3.0.0/16"`, `"EnableIPv6":true,"IPv6Network":"fd10:6::/48"`
		file4      = "FLANNEL_NETWORK=10.3.0.0/16 FLANNEL_SUBNET=10.3.1.1/24 "
		file6      = "FLANNEL_IPV6_NETWORK=fd10:6::/48 FLANNEL_IPV6_SUBNET=fd10:6:0:1::1/64 "
		filed      = "FLANNEL_MTU=1450 FLANNEL_IPMASQ=false"
	)
	for _, tt := range []struct {
		name, config, families string
		key                    string // of another node's lease
		wanted, file           string
	}{
		{"IPv4", `{` + net4 + `}`, "4", "10.3.2.0-24",
			"own [10.3.1.0/24] addrs [10.3.1.1/32] networks [10.3.0.0/16] mtu 1450 peers 192.168.0.2[10.3.2.0/24]", file4 + filed},
		{"IPv6", `{"EnableIPv4":false,` + net6 + `}`, "6", "0.0.0.0-0&fd10:6:0:2::-64",
			"own [fd10:6:0:1::/64] addrs [fd10:6:0:1::1/128] networks [fd10:6::/48] mtu 1450 peers fd99::2[fd10:6:0:2::/64]", file6 + filed},
		{"two", `{` + net4 + `,` + net6 + `}`, "46", "10.3.2.0-24&fd10:6:0:2::-64",
			"own [10.3.1.0/24 fd10:6:0:1::/64] addrs [10.3.1.1/32 fd10:6:0:1::1/128] networks [10.3.0.0/16 fd10:6::/48] mtu 1450 " +
				"peers 192.168.0.2[10.3.2.0/24] fd99::2[fd10:6:0:2::/64]", file4 + file6 + filed},
		{"IPv4 over IPv6", `{` + net4 + `}`, "6", "10.3.2.0-24",
			"own [10.3.1.0/24] addrs [10.3.1.1/32] networks [10.3.0.0/16] mtu 1450 peers fd99::2[10.3.2.0/24]", file4 + filed},
		{"two over IPv4", `{` + net4 + `,` + net6 + `}`, "4", "10.3.2.0-24&fd10:6:0:2::-64",
			"own [10.3.1.0/24 fd10:6:0:1::/64] addrs [10.3.1.1/32 fd10:6:0:1::1/128] networks [10.3.0.0/16 fd10:6::/48] mtu 1450 " +
				"peers 192.168.0.2[10.3.2.0/24 fd10:6:0:2::/64]", file4 + file6 + filed},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t)
				b.memory.SetConfig(t, []byte(tt.config))
				b.memory.PutRaw(t, tt.key, control.Lease{PublicIP: publicIP(2), PublicIPv6: publicIPv6(2), BackendType: "vxlan",
					Backend: control.VTEPData{VNI: 1, MAC: encap.MAC{2, 4}}, BackendV6: control.VTEPData{VNI: 1, MAC: encap.MAC{2, 6}}}.Value())
				cfg := b.familyConfig(tt.config, tt.families)
				b.run(controller.New(cfg))
				synctest.Wait()
				if got := b.plane.told(); got != tt.wanted {
					t.Errorf("wanted\n%s, want\n%s", got, tt.wanted)
				}
				text, _ := os.ReadFile(b.file)
				if got := strings.ReplaceAll(strings.TrimSpace(string(text)), "\n", " "); got != tt.file {
					t.Errorf("subnet file %q, want %q", got, tt.file)
				}
			})
		})
	}
}

// TestPeersWithoutACommonFamily: a node of one underlay family in a network of two names in one line the
// peers that have none in common with it, wholly or for one of their subnets, and its status says which those are.
func TestPeersWithoutACommonFamily(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const config = `{"Network":"10.3.0.0/16","EnableIPv6":true,"IPv6Network":"fd10:6::/48"}`
		b := newBench(t)
		b.memory.SetConfig(t, []byte(config))
		lease := control.Lease{PublicIP: publicIP(2), PublicIPv6: publicIPv6(2), BackendType: "vxlan",
			Backend: control.VTEPData{VNI: 1, MAC: encap.MAC{2, 4}}, BackendV6: control.VTEPData{VNI: 1, MAC: encap.MAC{2, 6}}}
		b.memory.PutRaw(t, "10.3.2.0-24&fd10:6:0:2::-64", lease.Value()) // a flanneld's
		lease.PublicIP, lease.Backend, lease.PublicIPv6 = netip.Addr{}, control.VTEPData{}, publicIPv6(3)
		b.memory.PutRaw(t, "10.3.3.0-24&fd10:6:0:3::-64", lease.Value()) // of a node with IPv6 only
		cfg := b.familyConfig(config, "4")
		var log strings.Builder
		cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
		c := controller.New(cfg)
		b.run(c)
		synctest.Wait()
		var got []string
		for _, p := range c.Status().Peers {
			got = append(got, fmt.Sprint(p.Subnet, " ", p.State, " ", p.Reason))
		}
		want := []string{"10.3.2.0/24 up ", "fd10:6:0:2::/64 up no_common_family", "10.3.3.0/24 refused no_common_family", "fd10:6:0:3::/64 refused no_common_family"}
		if !slices.Equal(got, want) {
			t.Errorf("status %q, want %q", got, want)
		}
		for _, r := range c.Status().Rejected {
			if r.Node != publicIPv6(3) {
				t.Errorf("refused %+v", r)
			}
		}
		if text := log.String(); strings.Count(text, "WARN") != 1 || !strings.Contains(text, "underlay=IPv4 unreachable=fd99::3 no_ipv6_with=192.168.0.2") {
			t.Errorf("want one line that names both:\n%s", text)
		}
	})
}

// familyConfig is of a node with public IPs of both families, and VTEPs of some.
func (b *bench) familyConfig(text, families string) controller.Config {
	cfg := b.config(b.memory.Open(b.t))
	var err error
	if cfg.Network, err = control.ParseNetwork([]byte(text)); err != nil {
		b.t.Fatal(err)
	}
	cfg.Overlay, cfg.SubnetFile, cfg.WorkloadAddress = dualPlane{b.plane, families}, b.file, true
	cfg.Node.PublicIPv6 = publicIPv6(1)
	cfg.Node.Previous = append(cfg.Node.Previous, netip.MustParsePrefix("fd10:6:0:1::/64"))
	return cfg
}

// told returns the last Sync.
func (r *recorder) told() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := r.last
	text := fmt.Sprintf("own %v addrs %v networks %v mtu %d peers", w.Subnets, w.Addrs, w.Networks, w.MTU)
	for _, p := range w.Peers {
		text += fmt.Sprintf(" %s%v", p.Addr, p.Subnets)
	}
	return text
}

// TestSetMTU: in the device and in the subnet file, whenever it comes.
func TestSetMTU(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		cfg := b.familyConfig(scriptConfig, "4")
		c := controller.New(cfg)
		c.SetMTU(1400) // before there is anything
		if err := os.WriteFile(b.file, []byte("FLANNEL_SUBNET=10.3.1.1/24\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		b.memory.SetDown(os.ErrDeadlineExceeded)
		b.run(c)
		synctest.Wait()
		c.SetMTU(1390) // and before there is a lease: what the last run has left stays
		synctest.Wait()
		if _, err := os.Stat(b.file); err != nil || b.plane.count() != 0 {
			t.Errorf("without a lease yet: %v, %d Syncs", err, b.plane.count())
		}
		b.memory.SetDown(nil)
		time.Sleep(5 * time.Second)
		for syncs, mtu := range []int{1390, 1440, 1440, 8950} {
			c.SetMTU(mtu)
			synctest.Wait()
			text, _ := os.ReadFile(b.file)
			if b.plane.wanted().MTU != mtu || !strings.Contains(string(text), fmt.Sprintf("FLANNEL_MTU=%d\n", mtu)) {
				t.Errorf("after SetMTU(%d) number %d: told %d, subnet file %q", mtu, syncs, b.plane.wanted().MTU, text)
			}
		}
		if b.plane.count() != 3 {
			t.Errorf("%d Syncs, want one per MTU", b.plane.count())
		}
	})
}

// TestSetUnderlay: a lease that holds an address which this host comes to need is refused from then on, and used again
// when it is not needed any more. What lies in the network is passed on.
func TestSetUnderlay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.memory.PutRaw(t, "10.3.2.0-24", goodLease(2))
		b.memory.PutRaw(t, "10.3.3.0-24", goodLease(3))
		c := controller.New(b.familyConfig(scriptConfig, "4"))
		b.run(c)
		synctest.Wait()
		gateway := control.Need{Addr: netip.MustParseAddr("10.3.2.1"), What: "the default gateway of this host"}
		for _, needs := range [][]control.Need{{gateway}, nil} {
			c.SetUnderlay(control.Underlay{Needs: needs})
			synctest.Wait()
			told, rejected := b.plane.told(), c.Status().Rejected
			if used := strings.Contains(told, "10.3.2.0/24"); used != (needs == nil) || !strings.Contains(told, "10.3.3.0/24") {
				t.Errorf("needs %v: told %s", needs, told)
			}
			if len(rejected) != len(needs) || len(b.plane.wanted().Underlay) != len(needs) {
				t.Errorf("needs %v: rejected %v, the dataplane was told of %v", needs, rejected, b.plane.wanted().Underlay)
			}
			if n := c.Status().Stats.Withdrawn; n != 1 {
				t.Errorf("needs %v: %d routes were withdrawn, want 1", needs, n)
			}
		}
	})
}
