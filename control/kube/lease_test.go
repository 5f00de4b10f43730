package kube

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/encap"
)

const p = DefaultAnnotationPrefix + "/"

func testReader(t *testing.T) reader {
	t.Helper()
	n, err := newNames(DefaultAnnotationPrefix)
	if err != nil {
		t.Fatal(err)
	}
	return reader{names: n, ipv4: true, ipv6: true}
}

var (
	dataV4 = control.VTEPData{VNI: 44, MAC: encap.MAC{0x3e, 1, 2, 3, 4, 5}}
	dataV6 = control.VTEPData{VNI: 44, MAC: encap.MAC{0x3e, 1, 2, 3, 4, 6}}
)

// good returns a Node with all that a dual-stack lease has, in flannel's text.
func good(name string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: "77", CreationTimestamp: metav1.Unix(1000, 0), Annotations: map[string]string{
			p + "kube-subnet-manager": "true", p + "backend-type": "vxlan", "other": "x",
			p + "public-ip": "192.0.2.1", p + "backend-data": `{"VNI":44,"VtepMAC":"3e:01:02:03:04:05"}`,
			p + "public-ipv6": "2001:db8::1", p + "backend-v6-data": `{"VNI":44,"VtepMAC":"3e:01:02:03:04:06"}`,
		}},
		Spec: corev1.NodeSpec{PodCIDR: "10.3.5.0/24", PodCIDRs: []string{"10.3.5.0/24", "fd10:6:0:5::/64"}},
	}
}

// with returns a good Node, changed.
func with(change func(n *corev1.Node)) *corev1.Node {
	n := good("a")
	change(n)
	return n
}

func annotate(pairs ...string) *corev1.Node {
	return with(func(n *corev1.Node) {
		for i := 0; i < len(pairs); i += 2 {
			if n.Annotations[p+pairs[i]] = pairs[i+1]; pairs[i+1] == "" {
				delete(n.Annotations, p+pairs[i])
			}
		}
	})
}

func TestLeaseOfNode(t *testing.T) {
	want := control.Lease{Subnet: netip.MustParsePrefix("10.3.5.0/24"), IPv6Subnet: netip.MustParsePrefix("fd10:6:0:5::/64"),
		PublicIP: netip.MustParseAddr("192.0.2.1"), PublicIPv6: netip.MustParseAddr("2001:db8::1"),
		BackendType: "vxlan", Backend: dataV4, BackendV6: dataV6, CreateRevision: 1000, ModRevision: 1077}
	half := func(change func(l *control.Lease)) *control.Lease {
		l := want
		change(&l)
		return &l
	}
	noV6 := half(func(l *control.Lease) { l.PublicIPv6, l.BackendV6 = netip.Addr{}, control.VTEPData{} })
	noV4 := half(func(l *control.Lease) { l.PublicIP, l.Backend = netip.Addr{}, control.VTEPData{} })
	for _, c := range []struct {
		name string
		node *corev1.Node
		want *control.Lease // nil: none of ours, or err
		err  string
	}{
		{name: "dual-stack", node: good("a"), want: &want},
		{name: "no annotations", node: with(func(n *corev1.Node) { n.Annotations = nil })},
		{name: "not managed", node: annotate("kube-subnet-manager", "")},
		{name: "managed otherwise", node: annotate("kube-subnet-manager", "True")},
		{name: "IPv4 VTEP only", node: annotate("public-ipv6", "", "backend-v6-data", ""), want: noV6},
		{name: "IPv6 VTEP only", node: annotate("public-ip", "", "backend-data", ""), want: noV4},
		{name: "no IPv4 address in etcd's words", node: annotate("public-ip", "0.0.0.0"), want: noV4},
		{name: "no IPv4 data", node: annotate("backend-data", "null"), want: noV4},
		{name: "half an IPv4 VTEP", node: annotate("backend-data", ""), want: noV4},
		{name: "podCIDR of old API servers", node: with(func(n *corev1.Node) { n.Spec.PodCIDRs = nil }),
			want: half(func(l *control.Lease) { l.IPv6Subnet = netip.Prefix{} })},
		{name: "podCIDR with host bits", node: with(func(n *corev1.Node) { n.Spec.PodCIDRs[0] = "10.3.5.7/24" }), want: &want},
		{name: "IPv6 first", node: with(func(n *corev1.Node) { n.Spec.PodCIDRs = []string{"fd10:6:0:5::/64", "10.3.5.0/24"} }), want: &want},
		{name: "host-gw", node: annotate("backend-type", "host-gw", "backend-data", "null", "backend-v6-data", "null"),
			want: half(func(l *control.Lease) {
				l.Backend, l.BackendV6, l.BackendType = control.VTEPData{}, control.VTEPData{}, "host-gw"
			})},
		{name: "alloc", node: annotate("backend-type", "", "backend-data", "null", "public-ipv6", "", "backend-v6-data", ""),
			want: half(func(l *control.Lease) {
				l.Backend, l.BackendV6, l.BackendType, l.PublicIPv6 = control.VTEPData{}, control.VTEPData{}, "", netip.Addr{}
			})},
		{name: "host-gw without address", node: annotate("backend-type", "host-gw", "public-ip", "", "public-ipv6", ""), err: "are not set"},
		{name: "host-gw with a bad address", node: annotate("backend-type", "host-gw", "public-ip", "x"), err: "is not an IPv4 address"},
		{name: "another backend", node: annotate("backend-type", "ipip", "backend-data", "null", "public-ip", "x"),
			want: half(func(l *control.Lease) {
				l.PublicIP, l.PublicIPv6, l.Backend, l.BackendV6 = netip.Addr{}, netip.Addr{}, control.VTEPData{}, control.VTEPData{}
				l.BackendType = "ipip"
			})},
		{name: "no podCIDR", node: with(func(n *corev1.Node) { n.Spec = corev1.NodeSpec{} }), err: `node "a": pod cidr not assigned`},
		{name: "three", node: with(func(n *corev1.Node) { n.Spec.PodCIDRs = append(n.Spec.PodCIDRs, "10.3.6.0/24") }), err: "dualstack: there are 3"},
		{name: "two of a family", node: with(func(n *corev1.Node) { n.Spec.PodCIDRs[1] = "10.3.6.0/24" }), err: "10.3.5.0/24 and 10.3.6.0/24"},
		{name: "no CIDR", node: with(func(n *corev1.Node) { n.Spec.PodCIDRs[0] = "10.3.5.0" }), err: `podCIDR "10.3.5.0" is not a CIDR`},
		{name: "no VTEP", node: annotate("public-ip", "", "public-ipv6", ""), err: p + `public-ip "" and`},
		{name: "bad address", node: annotate("public-ip", "192.0.2.300"), err: `annotation ` + p + `public-ip "192.0.2.300" is not an IPv4 address`},
		{name: "wrong family", node: annotate("public-ip", "2001:db8::1"), err: "is not an IPv4 address"},
		{name: "zone", node: annotate("public-ipv6", "fe80::1%eth0"), err: "is not an IPv6 address"},
		{name: "bad data", node: annotate("backend-data", "{"), err: "annotation " + p + "backend-data"},
		{name: "bad VNI", node: annotate("backend-data", `{"VNI":16777216,"VtepMAC":"3e:01:02:03:04:05"}`), err: "16777216"},
		{name: "bad MAC", node: annotate("backend-v6-data", `{"VNI":1,"VtepMAC":"zz"}`), err: "backend-v6-data.VtepMAC"},
		{name: "stand-in for IPv6", node: annotate("public-ipv6", "100::c000:201"), want: noV6},
		{name: "stand-in for IPv4", node: with(func(n *corev1.Node) {
			n.Annotations[p+"public-ip"] = noV4.WithStandIns().PublicIP.String()
		}), want: noV4},
		{name: "facts", node: annotate("overlayd-node", `{"v":1,"src4":"10.0.0.1","later":2}`),
			want: half(func(l *control.Lease) { l.Facts = control.NodeFacts{V: 1, Source: netip.MustParseAddr("10.0.0.1")} })},
		{name: "bad facts cost nothing", node: annotate("overlayd-node", `{"v":1,"src4":"fd00::1"}`), want: &want},
		{name: "long data", node: annotate("backend-data", `{"VNI":1,"VtepMAC":"3e:01:02:03:04:05"}`+strings.Repeat(" ", maxAnnotation)), err: "backend-data \"{"},
		{name: "long data of IPv6", node: annotate("backend-v6-data", `{"VNI":1,"VtepMAC":"3e:01:02:03:04:05","x":"`+strings.Repeat("y", maxAnnotation)+`"}`), err: "has more than 1024 bytes"},
		{name: "long facts cost nothing", node: annotate("overlayd-node", `{"v":1,"src4":"10.0.0.1"}`+strings.Repeat(" ", maxAnnotation)), want: &want},
		{name: "endless", node: annotate("public-ip", strings.Repeat("1", 1<<18)), err: "is not an IPv4 address"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := testReader(t)
			for _, n := range []*corev1.Node{c.node, r.trim(c.node)} {
				l, ok, err := r.lease(n)
				switch {
				case c.err != "" && (err == nil || !ok || !strings.Contains(err.Error(), c.err) || len(err.Error()) > 400):
					t.Errorf("%+v, %v, %v, want %q", l, ok, err, c.err)
				case c.err == "" && (err != nil || ok != (c.want != nil) || ok && l != *c.want):
					t.Errorf("%+v, %v, %v, want %+v", l, ok, err, c.want)
				}
			}
		})
	}
}

func TestLeaseOfOneFamily(t *testing.T) {
	r := testReader(t)
	r.ipv6 = false
	if l, _, err := r.lease(good("a")); err != nil || l.IPv6Subnet.IsValid() || l.Key() != "10.3.5.0-24" {
		t.Errorf("%+v, %v", l, err)
	}
	r.ipv4, r.ipv6 = false, true
	v4 := with(func(n *corev1.Node) { n.Spec.PodCIDRs = []string{"10.3.5.0/24"} })
	if l, _, err := r.lease(v4); err == nil || !strings.Contains(err.Error(), `["10.3.5.0/24"]`) {
		t.Errorf("%+v, %v", l, err)
	}
}

// TestAnnotationsAreFlannels: to the byte, and read back as they were.
func TestAnnotationsAreFlannels(t *testing.T) {
	r, n := testReader(t), good("a")
	l, _, err := r.lease(n)
	if err != nil {
		t.Fatal(err)
	}
	got := r.annotations(l)
	for _, k := range r.names.written() {
		if got[k] != n.Annotations[k] {
			t.Errorf("%s is %q, want %q", k, got[k], n.Annotations[k])
		}
	}
	if len(got) != 6 {
		t.Errorf("%d annotations, want 6", len(got))
	}
}

// TestAnnotationsOfOneVTEP: a dual-stack Node with one VTEP has a stand-in for the other one, and is
// known as publishing the same before and after.
func TestAnnotationsOfOneVTEP(t *testing.T) {
	r, before := testReader(t), annotate("public-ipv6", "", "backend-v6-data", "")
	l, _, err := r.lease(before)
	if err != nil {
		t.Fatal(err)
	}
	l.Facts = control.NodeFacts{V: 1}
	got := r.annotations(l)
	for k, want := range map[string]string{"public-ip": "192.0.2.1", "public-ipv6": "100::c000:201", "backend-v6-data": dataText("vxlan", dataV4), "overlayd-node": `{"v":1}`} {
		if got[p+k] != want {
			t.Errorf("%s is %q, want %q", k, got[p+k], want)
		}
	}
	after := with(func(n *corev1.Node) { maps.Copy(n.Annotations, got) })
	if !r.says(before, l) || !r.says(after, l) || r.says(good("a"), l) {
		t.Errorf("says %v before, %v after, %v with two", r.says(before, l), r.says(after, l), r.says(good("a"), l))
	}
}

// TestChangesThatFlanneldSees: a flanneld of a dual-stack network takes an update for a change only if the
// annotations of both families differ; what does not change is not written.
func TestChangesThatFlanneldSees(t *testing.T) {
	r := testReader(t)
	lease := func(v4, v6 string) control.Lease {
		l := control.Lease{Subnet: netip.MustParsePrefix("10.3.5.0/24"), IPv6Subnet: netip.MustParsePrefix("fd10:6:0:5::/64"), BackendType: "vxlan"}
		if v4 != "" {
			l.PublicIP, l.Backend = netip.MustParseAddr(v4), dataV4
		}
		if v6 != "" {
			l.PublicIPv6, l.BackendV6 = netip.MustParseAddr(v6), dataV6
		}
		return l
	}
	n := annotate("public-ipv6", "", "backend-v6-data", "") // as an overlayd wrote it that did not know stand-ins
	for i, l := range []control.Lease{
		lease("192.0.2.1", ""), lease("192.0.2.1", "2001:db8::1"), lease("192.0.2.1", "2001:db8::2"), lease("192.0.2.7", "2001:db8::2"),
		lease("192.0.2.8", "2001:db8::3"), lease("", "2001:db8::3"), lease("192.0.2.8", "2001:db8::3"),
	} {
		for again := range 2 {
			before := maps.Clone(n.Annotations)
			want := r.annotations(l)
			r.names.markChange(n.Annotations, want)
			maps.Copy(n.Annotations, want)
			differ := func(names ...string) bool {
				return slices.ContainsFunc(names, func(k string) bool { return before[p+k] != n.Annotations[p+k] })
			}
			v4, v6 := differ("backend-data", "public-ip"), differ("backend-v6-data", "public-ipv6")
			if v4 != v6 || v4 != (again == 0) {
				t.Errorf("change %d, written %d times before: IPv4 differs %v, IPv6 %v:\n%q", i, again, v4, v6, n.Annotations)
			}
			if !r.says(n, l) {
				t.Errorf("change %d: does not say %+v:\n%q", i, l, n.Annotations)
			}
		}
	}
}

func TestOwn(t *testing.T) {
	dual := control.Network{EnableIPv4: true, EnableIPv6: true, Network: netip.MustParsePrefix("10.3.0.0/16"), IPv6Network: netip.MustParsePrefix("fd10:6::/48")}
	published := control.Lease{PublicIP: netip.MustParseAddr("192.0.2.9"), Backend: dataV4, BackendType: "vxlan"}
	for _, c := range []struct {
		name, err string
		node      *corev1.Node
		network   func(n *control.Network)
		publicIP  string
		source    string
	}{
		{name: "plain", node: good("a"), publicIP: "192.0.2.9"},
		{name: "overwritten", node: annotate("public-ip-overwrite", "203.0.113.1"), publicIP: "203.0.113.1", source: "192.0.2.9"},
		{name: "overwritten by the same", node: annotate("public-ip-overwrite", "192.0.2.9"), publicIP: "192.0.2.9"},
		{name: "IPv6 overwrite without such a VTEP", node: annotate("public-ipv6-overwrite", "junk"), publicIP: "192.0.2.9"},
		{name: "bad overwrite", node: annotate("public-ip-overwrite", "no"), err: `annotation ` + p + `public-ip-overwrite "no" is not an IPv4 address`},
		{name: "the whole network", node: good("a"), network: func(n *control.Network) { n.Network = netip.MustParsePrefix("10.3.5.0/24") }, publicIP: "192.0.2.9"},
		{name: "outside", node: good("a"), network: func(n *control.Network) { n.Network = netip.MustParsePrefix("10.44.0.0/16") },
			err: `subnet "10.44.0.0/16" specified in the flannel net config doesn't contain "10.3.5.0/24" PodCIDR of the "a" node`},
		{name: "not assigned", node: with(func(n *corev1.Node) { n.Spec = corev1.NodeSpec{} }), err: "pod cidr not assigned"},
		{name: "half assigned", node: with(func(n *corev1.Node) { n.Spec.PodCIDRs = n.Spec.PodCIDRs[:1] }), err: "pod cidr not assigned: the network has IPv6"},
	} {
		network := dual
		if c.network != nil {
			c.network(&network)
		}
		l, err := testReader(t).own(c.node, network, published)
		switch {
		case c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)):
			t.Errorf("%s: %v, want %q", c.name, err, c.err)
		case c.err == "" && (err != nil || l.PublicIP.String() != c.publicIP || l.PublicIPv6.IsValid() || l.Key() != "10.3.5.0-24&fd10:6:0:5::-64"):
			t.Errorf("%s: %+v, %v", c.name, l, err)
		case c.err == "" && (c.source != "") != l.Facts.Source.IsValid(), c.source != "" && l.Facts.Source.String() != c.source:
			t.Errorf("%s: source %s, want %q", c.name, l.Facts.Source, c.source)
		}
	}
}

func TestChange(t *testing.T) {
	r, n := testReader(t), good("a")
	n.UID = "u"
	l, _, _ := r.lease(n)
	now := time.Unix(0, 0)
	for _, c := range []struct {
		name, want string
		node       *corev1.Node
		ready      bool
	}{
		{name: "as it should be", node: n},
		{name: "one differs", node: annotate("public-ip", "192.0.2.7"), want: `{"metadata":{"uid":"","annotations":{"` + p + `public-ip":"192.0.2.1"}}}`},
		{name: "ready", node: n, ready: true, want: `{"metadata":{"uid":"u"},"status":{"conditions":[{"type":"NetworkUnavailable","status":"False",` +
			`"lastHeartbeatTime":"1970-01-01T00:00:00Z","lastTransitionTime":"1970-01-01T00:00:00Z","reason":"FlannelIsUp","message":"Flannel is running on this node"}]}}`},
		{name: "ready before", ready: true, node: with(func(n *corev1.Node) { n.Status.Conditions = []corev1.NodeCondition{available(now)} })},
	} {
		if got, err := change(c.node, r.names.written(), r.annotations(l), c.ready, now); err != nil || string(got) != c.want {
			t.Errorf("%s: %s, %v, want %s", c.name, got, err, c.want)
		}
	}
	none, err := change(n, r.names.written(), nil, false, now)
	if err != nil || strings.Count(string(none), ":null") != 6 || strings.Contains(string(none), "other") {
		t.Errorf("removal: %s, %v", none, err)
	}
}
