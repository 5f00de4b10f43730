package leases

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/etcd"
)

// TestParseReservation: one or two subnets, and an address of each family that others can send to.
func TestParseReservation(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ subnets, public, public6, says string }{
		{"10.5.34.0/24", "192.0.2.9", "", ""},
		{"10.5.34.0/24,fd10:5:0:34::/64", "192.0.2.9", "2001:db8::9", ""},
		{"fd10:5:0:34::/64", "", "2001:db8::9", ""},
		{"10.5.34.1/24", "192.0.2.9", "", `"10.5.34.1/24" is not a subnet`},
		{"::ffff:10.5.34.0/120", "192.0.2.9", "", "is not a subnet"},
		{"10.5.34.0/24,10.5.35.0/24", "192.0.2.9", "", "one subnet of each family"},
		{"10.5.34.0/24", "", "", "--public-ip, --public-ipv6: want the address"},
		{"10.5.34.0/24", "127.0.0.1", "", `--public-ip: "127.0.0.1"`},
		{"10.5.34.0/24", "", "fe80::1%eth0", `--public-ipv6: "fe80::1%eth0"`},
		{"10.5.34.0/24", "", "::ffff:192.0.2.9", "--public-ipv6"},
	} {
		l, err := ParseReservation([]string{c.subnets}, c.public, c.public6)
		switch {
		case c.says == "" && (err != nil || Subnets(l) != c.subnets || PublicIPs(l) != join(c.public, c.public6)):
			t.Errorf("%s: %+v, %v", c.subnets, l, err)
		case c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)):
			t.Errorf("%s, %s%s: %v, want %q", c.subnets, c.public, c.public6, err, c.says)
		}
	}
}

// TestPrint: what somebody wrote to the store cannot change the terminal or the columns, and entries that are not used
// follow with their reasons.
func TestPrint(t *testing.T) {
	t.Parallel()
	entries := []etcd.Entry{
		{Key: "10.5.9.0-24", Lease: control.Lease{Subnet: netip.MustParsePrefix("10.5.9.0/24"), PublicIP: netip.MustParseAddr("192.0.2.1"), BackendType: "vx\x1b[2J",
			Backend: control.VTEPData{VNI: 7}}, TTL: time.Hour, State: etcd.EntryUsed, Alive: "yes", Node: "a"},
		{Key: "10.5.10.0-24", Lease: control.Lease{Subnet: netip.MustParsePrefix("10.5.10.0/24")}, Reserved: true, State: etcd.EntryReserved, Alive: "unknown"},
		{Key: "x\ty", Err: errors.New("read JSON"), Reserved: true, State: etcd.EntryUnreadable, Why: "it is\nno lease"},
	}
	var text strings.Builder
	if err := Print(&text, entries); err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(text.String()) {
		got = append(got, strings.Join(strings.Fields(line), " "))
	}
	want := []string{
		"SUBNET PUBLIC-IP BACKEND VNI VTEP-MAC EXPIRES-IN STATE ALIVE NODE",
		`10.5.9.0/24 192.0.2.1 vx\x1b[2J 7 00:00:00:00:00:00 1h0m0s used yes a`,
		"10.5.10.0/24 - - - - reserved reserved unknown -",
		"",
		"NOT USED STATE EXPIRES-IN REASON",
		`x\ty unreadable never it is\nno lease`,
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
