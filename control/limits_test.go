package control

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestSources: an outer source that a node says to have is its own unless somebody else has a
// better right to it.
func TestSources(t *testing.T) {
	n := network(t, `{"Network":"10.3.0.0/16"}`)
	self := with(lease("10.3.1.0/24", 1, 1), func(l *Lease) { l.Facts.Source = addr("10.0.0.1") })
	from := func(i int, revision int64, source string) Lease {
		l := lease(fmt.Sprintf("10.3.%d.0/24", i), i, revision)
		l.Facts = NodeFacts{V: 1, Source: addr(source)}
		return l
	}
	for _, tt := range []struct {
		name   string
		leases []Lease
		want   map[int]string // accepted sources, by node
		limits []string
	}{
		{"its own", []Lease{from(2, 2, "10.0.0.2")}, map[int]string{2: "10.0.0.2"}, nil},
		{"the published one", []Lease{from(2, 2, "192.168.0.2")}, nil, nil},
		{"this host's source", []Lease{from(2, 2, "10.0.0.1")}, nil, []string{"10.3.2.0-24 source_unusable: packets of 192.168.0.2: source 10.0.0.1 belongs to this host"}},
		{"this host's public IP", []Lease{from(2, 2, "192.168.0.1")}, nil, []string{"10.3.2.0-24 source_unusable: packets of 192.168.0.2: source 192.168.0.1 belongs to this host"}},
		{"loopback", []Lease{from(2, 2, "127.0.0.1")}, nil, []string{"10.3.2.0-24 source_unusable: packets of 192.168.0.2: source 127.0.0.1 is not the address of one host"}},
		{"another's public IP", []Lease{from(2, 2, "192.168.0.3"), lease("10.3.3.0/24", 3, 9)}, nil,
			[]string{"10.3.2.0-24 source_in_use: packets of 192.168.0.2: their source 192.168.0.3 is published by another node"}},
		{"the public IP of a lease that is not used", []Lease{from(2, 2, "192.168.0.3"), lease("10.9.3.0/24", 3, 9)}, nil,
			[]string{"10.3.2.0-24 source_in_use: packets of 192.168.0.2: their source 192.168.0.3 is published by another node"}},
		{"two with one source: the older", []Lease{from(2, 7, "10.0.0.2"), from(3, 6, "10.0.0.2"), from(4, 8, "10.0.0.4")}, map[int]string{3: "10.0.0.2", 4: "10.0.0.4"},
			[]string{"10.3.2.0-24 source_in_use: packets of 192.168.0.2: their source 10.0.0.2 is that of the older lease's node 192.168.0.3"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := NewRIB(n)
			r.Apply(Update{Reset: true, Leases: append(slices.Clone(tt.leases), self)})
			peers, _ := r.Peers(self)
			got := map[int]string{}
			for _, p := range peers {
				if p.Source.IsValid() {
					got[int(p.Addr.As4()[3])] = p.Source.String()
				}
			}
			if len(got)+len(tt.want) > 0 && !cmp.Equal(got, tt.want) {
				t.Errorf("sources %v, want %v", got, tt.want)
			}
			wantLimits(t, r, tt.limits)
		})
	}
}

func wantLimits(t *testing.T, r *RIB, want []string) {
	t.Helper()
	var got []string
	for _, l := range r.Limits() {
		got = append(got, fmt.Sprintf("%s %s: %v", l.Key, Reason(l.Err), l.Err))
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("limits (-want +got):\n%s", d)
	}
}

// TestPeersOfTwoFamiliesInOne: with one underlay family a node has a limit with each flanneld, which
// has both, and none with overlayds.
func TestPeersOfTwoFamiliesInOne(t *testing.T) {
	n := network(t, `{"Network":"10.3.0.0/16","EnableIPv6":true,"IPv6Network":"fd10:6::/48"}`)
	node := func(i, v int) Lease {
		l := lease(fmt.Sprintf("10.3.%d.0/24", i), i, int64(i))
		l.IPv6Subnet, l.PublicIPv6, l.BackendV6 = prefix(fmt.Sprintf("fd10:6:0:%d::/64", i)), addr(fmt.Sprintf("fd99::%d", i)), l.Backend
		l.Facts.V = v
		return l
	}
	both := node(1, 1)
	no4 := with(both, func(l *Lease) { l.PublicIP, l.Backend = netip.Addr{}, VTEPData{} })
	no6 := with(both, func(l *Lease) { l.PublicIPv6, l.BackendV6 = netip.Addr{}, VTEPData{} })
	for _, tt := range []struct {
		self Lease
		want []string
	}{
		{both, nil},
		{no6, []string{"10.3.2.0-24&fd10:6:0:2::-64 no_common_family: 192.168.0.2 runs no overlayd and so sends IPv6 over IPv6 alone, of which this node has no underlay address"}},
		{no4, []string{"10.3.2.0-24&fd10:6:0:2::-64 no_common_family: 192.168.0.2 runs no overlayd and so sends IPv4 over IPv4 alone, of which this node has no underlay address"}},
	} {
		r := NewRIB(n)
		r.Apply(Update{Reset: true, Leases: []Lease{tt.self, node(2, 0), node(3, 1)}})
		if peers, rejected := r.Peers(tt.self); len(rejected) > 0 || len(peers) < 2 {
			t.Errorf("%v, rejected %v", peers, rejected)
		}
		wantLimits(t, r, tt.want)
	}
}

// TestParseNodeFacts: facts are read back, among whatever other fields, and an error names the field.
func TestParseNodeFacts(t *testing.T) {
	for _, f := range []NodeFacts{{}, {V: 1}, {V: 2, Source: addr("10.0.0.1")}, {V: 1, Source: addr("10.0.0.1"), SourceV6: addr("fd00::1")}, {V: 1, Userspace: true}, {V: 1, Name: "n\"1"}} {
		if got, err := ParseNodeFacts([]byte(f.JSON())); got != f || err != nil {
			t.Errorf("%s reads as %+v, %v", f.JSON(), got, err)
		}
	}
	for text, want := range map[string]string{
		`{"id":"a","name":7}`:              "",
		`{"v":-1,"src4":""}`:               "",
		`{"v":1,"src4":"fd00::1"}`:         `src4 "fd00::1" is not an IPv4 address`,
		`{"v":1,"src6":"fe80::1%eth0"}`:    `src6 "fe80::1%eth0" is not an IPv6 address`,
		`{"v":1,"src6":"::ffff:10.0.0.1"}`: `src6 "::ffff:10.0.0.1" is not an IPv6 address`,
		`{"v":"1"}`:                        `"v": want a whole number, got JSON string`,
		`{"v":1,"userspace":"yes"}`:        `"userspace": want true or false, got JSON string`,
		`{`:                                "read JSON",
		`[]`:                               "want an object",
	} {
		f, err := ParseNodeFacts([]byte(text))
		if want == "" && (err != nil || f != (NodeFacts{})) || want != "" && (err == nil || !strings.Contains(err.Error(), want) || f != (NodeFacts{}) && f.V != 1) {
			t.Errorf("%s: %+v, %v, want %q", text, f, err, want)
		}
	}
	if f, err := ParseNodeFacts([]byte(`{"name":"\u001b[31m` + strings.Repeat("long", 100) + `"}`)); err != nil || len(f.Name) > nodeNameBytes || strings.ContainsRune(f.Name, 0x1b) {
		t.Errorf("a long name with a control character: %q, %v", f.Name, err)
	}
}
