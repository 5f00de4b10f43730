package kube

import (
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane"
)

// node makes a good IPv4 Node, created at second age.
func node(name, cidr string, age int64) *corev1.Node {
	n := good(name)
	n.CreationTimestamp = metav1.Unix(age, 0)
	n.Spec.PodCIDR, n.Spec.PodCIDRs = cidr, []string{cidr}
	delete(n.Annotations, p+"public-ipv6")
	delete(n.Annotations, p+"backend-v6-data")
	return n
}

func broken(n *corev1.Node) *corev1.Node {
	n.Annotations[p+"backend-data"] = "{"
	return n
}

func plain(n *corev1.Node) *corev1.Node {
	n.Annotations = nil
	return n
}

// text is what take returns, in words.
func text(tb *nodeTable) string {
	u, ok := tb.take()
	if !ok {
		return "nothing"
	}
	var words []string
	if u.Reset {
		words = append(words, "reset")
	}
	for _, l := range u.Leases {
		words = append(words, fmt.Sprintf("%s@%d", l.Key(), l.CreateRevision))
	}
	for _, b := range u.Bad {
		words = append(words, "bad "+b.Key)
	}
	for _, k := range u.Deleted {
		words = append(words, "deleted "+k)
	}
	return strings.Join(words, ", ")
}

func TestTable(t *testing.T) {
	const a, b = "10.3.1.0/24", "10.3.2.0/24"
	type step struct {
		what string
		do   func(t *nodeTable) error
		want string
	}
	add := func(n *corev1.Node) func(t *nodeTable) error { return func(t *nodeTable) error { return t.Add(n) } }
	del := func(name string) func(t *nodeTable) error {
		return func(t *nodeTable) error { return t.Delete(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}) }
	}
	list := func(nodes ...*corev1.Node) func(t *nodeTable) error {
		return func(t *nodeTable) error {
			var all []any
			for _, n := range nodes {
				all = append(all, n)
			}
			return t.Replace(all, "")
		}
	}
	for name, steps := range map[string][]step{
		"life of a node": {
			{"before the list", add(node("x", a, 1)), "nothing"},
			{"list", list(node("x", a, 1), plain(node("y", b, 1))), "reset, 10.3.1.0-24@1"},
			{"heartbeat", add(node("x", a, 1)), "nothing"},
			{"heartbeat of a plain node", add(plain(node("y", b, 1))), "nothing"},
			{"joins", add(node("y", b, 1)), "10.3.2.0-24@1"},
			{"annotations gone", add(plain(node("y", b, 1))), "deleted 10.3.2.0-24"},
			{"back", add(node("y", b, 1)), "10.3.2.0-24@1"},
			{"made again with another podCIDR", add(node("x", "10.3.9.0/24", 5)), "10.3.9.0-24@5, deleted 10.3.1.0-24"},
			{"deleted", del("x"), "deleted 10.3.9.0-24"},
			{"deleted again", del("x"), "nothing"},
			{"list without it", list(), "reset"},
		},
		"broken": {
			{"list", list(node("x", a, 1)), "reset, 10.3.1.0-24@1"},
			{"broken", add(broken(node("x", a, 1))), "bad 10.3.1.0-24"},
			{"still", add(broken(node("x", a, 1))), "nothing"},
			{"no podCIDR", add(node("x", "junk", 1)), "bad 10.3.1.0-24"},
			{"list with it", list(node("x", "junk", 1)), "reset, bad 10.3.1.0-24"},
			{"whole", add(node("x", b, 1)), "10.3.2.0-24@1, deleted 10.3.1.0-24"},
			{"never known", add(node("y", "junk", 1)), "bad node/y"},
			{"put right", add(node("y", a, 1)), "10.3.1.0-24@1, deleted node/y"},
			{"broken in a list", list(broken(node("z", a, 1)), node("x", b, 1)), "reset, 10.3.2.0-24@1, bad 10.3.1.0-24"},
			{"deleted", del("z"), "deleted 10.3.1.0-24"},
		},
		"two claim a podCIDR": {
			{"list", list(node("young", a, 9), node("old", a, 2)), "reset, 10.3.1.0-24@2, 10.3.1.0-24@young@9"},
			{"older ends", del("old"), "10.3.1.0-24@9, deleted 10.3.1.0-24@old, deleted 10.3.1.0-24@young"},
			{"younger comes", add(node("x", a, 10)), "10.3.1.0-24@9, 10.3.1.0-24@x@10, deleted 10.3.1.0-24@young"},
			{"the lower name of one second", add(node("baby", a, 9)), "10.3.1.0-24@9, 10.3.1.0-24@young@9, deleted 10.3.1.0-24@baby"},
			{"the winner breaks", add(broken(node("baby", a, 9))), "10.3.1.0-24@9, deleted 10.3.1.0-24@baby, deleted 10.3.1.0-24@young"},
			{"all leave but one", func(t *nodeTable) error { t.Delete(node("baby", a, 9)); return t.Delete(node("young", a, 9)) },
				"10.3.1.0-24@10, deleted 10.3.1.0-24@baby, deleted 10.3.1.0-24@x, deleted 10.3.1.0-24@young"},
		},
		"one that is older than the own node": {
			{"list", list(node("thief", a, 1), node("own", a, 5), node("young", a, 9)), "reset, 10.3.1.0-24@5, 10.3.1.0-24@thief@1, 10.3.1.0-24@young@9"},
			{"the own one goes", del("own"), "10.3.1.0-24@1, deleted 10.3.1.0-24@own, deleted 10.3.1.0-24@thief"},
			{"and is made again", add(node("own", a, 10)), "10.3.1.0-24@10, 10.3.1.0-24@thief@1, deleted 10.3.1.0-24@own"},
		},
		"many changes are one": {
			{"list", list(), "reset"},
			{"several", func(t *nodeTable) error {
				t.Add(node("x", a, 1))
				t.Add(node("y", b, 1))
				t.Delete(node("x", a, 1))
				return t.Add(node("y", b, 2))
			}, "10.3.2.0-24@2, deleted 10.3.1.0-24"},
			{"list covers what was before it", func(t *nodeTable) error {
				t.Add(node("x", a, 1))
				return list(node("y", b, 2))(t)
			}, "reset, 10.3.2.0-24@2"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := testReader(t)
			r.isOwn, r.wanted = func(name string) bool { return name == "own" }, func(*corev1.Node) (l control.Lease, ok bool, err error) { return l, false, nil }
			tb := newNodeTable(r)
			for _, s := range steps {
				if err := s.do(tb); err != nil {
					t.Fatalf("%s: %v", s.what, err)
				}
				if got := text(tb); got != s.want {
					t.Errorf("%s: %s, want %s", s.what, got, s.want)
				}
			}
		})
	}
}

// TestTableRefusesOthers: it takes nothing but Nodes.
func TestTableRefusesOthers(t *testing.T) {
	tb := newNodeTable(testReader(t))
	if err := tb.Add(&corev1.Pod{}); err == nil || !strings.Contains(err.Error(), "Pod") {
		t.Errorf("a pod: %v", err)
	}
}

// TestOwnNodeIsJudgedAgain when it is to say something else, by all that was seen of it: as it is, and not as it was when its lease
// changed last.
func TestOwnNodeIsJudgedAgain(t *testing.T) {
	r := testReader(t)
	var wanted *control.Lease
	r.isOwn = func(name string) bool { return name == "x" }
	r.wanted = func(n *corev1.Node) (control.Lease, bool, error) {
		if wanted == nil {
			return control.Lease{}, false, nil
		}
		l, err := r.own(n, control.Network{EnableIPv4: true, Network: netip.MustParsePrefix("10.3.0.0/16")}, *wanted)
		return l, true, err
	}
	overwritten := node("x", "10.3.1.0/24", 1)
	overwritten.Annotations[p+"public-ip-overwrite"] = "203.0.113.7"
	for name, see := range map[string]func(tb *nodeTable) error{
		"an event": func(tb *nodeTable) error { return errors.Join(tb.Replace(nil, ""), tb.Add(overwritten)) },
		"an event that changed no lease": func(tb *nodeTable) error {
			return errors.Join(tb.Replace([]any{node("x", "10.3.1.0/24", 1)}, ""), tb.Update(overwritten))
		},
		"a list": func(tb *nodeTable) error { return tb.Replace([]any{overwritten}, "") },
	} {
		tb := newNodeTable(r)
		wanted = nil
		if err := see(tb); err != nil {
			t.Fatal(err)
		}
		if got := text(tb); got != "reset, 10.3.1.0-24@1" {
			t.Errorf("%s: %s", name, got)
		}
		wanted = &control.Lease{PublicIP: netip.MustParseAddr("192.0.2.1")}
		tb.judgeOwn()
		if got := text(tb); got != "bad 10.3.1.0-24" {
			t.Errorf("%s, judged by the lease: %s", name, got)
		}
	}
	wanted = nil
	tb := newNodeTable(r)
	gathered, err := tb.leaseOf(overwritten) // as the Reflector does, before it calls Replace
	wanted = &control.Lease{PublicIP: netip.MustParseAddr("192.0.2.1")}
	if err := errors.Join(err, tb.Replace([]any{gathered}, "")); err != nil {
		t.Fatal(err)
	}
	if got := text(tb); got != "reset, bad 10.3.1.0-24" {
		t.Errorf("gathered before there was a lease: %s", got)
	}
}

// TestTrimForgets: what the Reflector gathers has nothing of a Node's bulk, nor a hostile
// annotation's.
func TestTrimForgets(t *testing.T) {
	r, n := testReader(t), good("a")
	n.Annotations[p+"public-ip"] = strings.Repeat("x", 1<<18)
	n.Status.Images = []corev1.ContainerImage{{Names: []string{"x"}}}
	n.ManagedFields = []metav1.ManagedFieldsEntry{{}}
	n.Labels = map[string]string{"x": "y"}
	got := r.trim(n)
	if len(got.Annotations[p+"public-ip"]) != maxAnnotation+1 || len(got.Status.Images)+len(got.ManagedFields)+len(got.Labels) > 0 {
		t.Errorf("%+v", got)
	}
	if _, ok := got.Annotations["other"]; ok || !slices.Equal(got.Spec.PodCIDRs, n.Spec.PodCIDRs) {
		t.Errorf("%+v", got)
	}
}

// TestManyNodesOfOnePodCIDR: what a list costs grows with the number of Nodes, even if all of
// them claim one podCIDR.
func TestManyNodesOfOnePodCIDR(t *testing.T) {
	allocated := func(nodes int) uint64 {
		tb := newNodeTable(testReader(t))
		var all []any
		for i := range nodes {
			all = append(all, node(fmt.Sprintf("n-%05d", i), "10.3.1.0/24", int64(nodes-i)))
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if err := tb.Replace(all, ""); err != nil {
			t.Fatal(err)
		}
		u, _ := tb.take()
		runtime.ReadMemStats(&after)
		if len(u.Leases) != nodes || len(u.Bad) != 0 {
			t.Fatalf("%d leases, %d bad", len(u.Leases), len(u.Bad))
		}
		return after.TotalAlloc - before.TotalAlloc
	}
	few, many := allocated(1000), allocated(4000)
	if t.Logf("1000 Nodes: %d bytes, 4000: %d", few, many); many > 6*few {
		t.Errorf("4 times the Nodes cost %.1f times as much", float64(many)/float64(few))
	}
}

// TestTableNamesLeases: a lease has its Node's own name, whatever that says, and whoever else publishes its address.
func TestTableNamesLeases(t *testing.T) {
	tb := newNodeTable(testReader(t))
	liar := node("liar", "10.3.2.0/24", 2)
	liar.Annotations[p+"overlayd-node"] = `{"v":1,"name":"x"}`
	if err := tb.Replace([]any{node("x", "10.3.1.0/24", 1), liar, broken(node("z", "10.3.3.0/24", 3))}, ""); err != nil {
		t.Fatal(err)
	}
	u, _ := tb.take()
	var names []string
	for _, l := range u.Leases {
		names = append(names, l.Facts.Name)
	}
	if !slices.Equal(names, []string{"x", "liar"}) || len(u.Bad) != 1 || u.Bad[0].Name != "z" {
		t.Errorf("the leases are of %q, those that cannot be read %+v", names, u.Bad)
	}
}

// TestUselessOlderNode: an older Node that nobody can use keeps no younger Node with the same podCIDR from its peers.
func TestUselessOlderNode(t *testing.T) {
	network, err := control.ParseNetwork([]byte(`{"Network":"10.3.0.0/16","Backend":{"Type":"vxlan","VNI":44}}`))
	if err != nil {
		t.Fatal(err)
	}
	own := netip.MustParseAddr("192.0.2.99")
	const cidr = "10.3.1.0/24"
	for name, value := range map[string]string{"backend-data": `{"VNI":7,"VtepMAC":"0e:00:00:00:00:07"}`, "backend-type": "host-gw", "public-ip": "255.255.255.255"} {
		tb, rib := newNodeTable(testReader(t)), control.NewRIB(network)
		old, young := node("old", cidr, 1), node("young", cidr, 9)
		old.Annotations[p+name] = value
		if err := tb.Replace([]any{old, young}, ""); err != nil {
			t.Fatal(err)
		}
		u, _ := tb.take()
		rib.Apply(u)
		peers, rejected := rib.Peers(control.Lease{PublicIP: own, BackendType: control.BackendVXLAN, Backend: control.VTEPData{VNI: 44, MAC: dataplane.MAC(own, 44)}})
		if len(peers) != 1 || !slices.Equal(peers[0].Subnets, []netip.Prefix{netip.MustParsePrefix(cidr)}) || !slices.Equal(rib.Names(), []string{"young"}) {
			t.Errorf("%s %s of the older Node: the peers are %+v of %q, refused is %+v", name, value, peers, rib.Names(), rejected)
		}
	}
}
