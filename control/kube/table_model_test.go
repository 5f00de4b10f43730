package kube

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// view is what a Controller knows that gets every Update of a table, in words by key.
type view map[string]string

func (v view) take(t *nodeTable) {
	u, _ := t.take()
	if u.Reset {
		clear(v)
	}
	for _, l := range u.Leases {
		v[l.Key()] = fmt.Sprintf("%s@%d", l.PublicIP, l.CreateRevision)
	}
	for _, b := range u.Bad {
		v[b.Key] = "bad"
	}
	for _, k := range u.Deleted {
		delete(v, k)
	}
}

// TestTableFollowsAnyHistory: after any events, taken at any moments, a follower knows what
// one knows that lists the same Nodes afresh.
func TestTableFollowsAnyHistory(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	names, cidrs := []string{"u", "v", "x", "y", "z"}, []string{"10.3.1.0/24", "10.3.2.0/24", "10.3.3.0/24"}
	some := func() *corev1.Node {
		n := node(names[rng.IntN(len(names))], cidrs[rng.IntN(len(cidrs))], 1+rng.Int64N(4))
		switch rng.IntN(6) {
		case 0:
			return broken(n)
		case 1:
			return plain(n)
		}
		return n
	}
	contested := 0
	for history := range 300 {
		tb, known, nodes := newNodeTable(testReader(t)), view{}, map[string]*corev1.Node{}
		list := func() (all []any) {
			for _, name := range slices.Sorted(maps.Keys(nodes)) {
				all = append(all, nodes[name])
			}
			return all
		}
		if err := tb.Replace(nil, ""); err != nil {
			t.Fatal(err)
		}
		var events []string
		for range 40 {
			n := some()
			var err error
			switch rng.IntN(8) {
			case 0:
				delete(nodes, n.Name)
				err = tb.Delete(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name}})
				events = append(events, "delete "+n.Name)
			case 1: // a list that shows what no event told
				nodes[n.Name] = n
				err = tb.Replace(list(), "")
				events = append(events, "list")
			default:
				nodes[n.Name] = n
				err = tb.Update(n)
				events = append(events, fmt.Sprintf("%s has %s since %d", n.Name, n.Spec.PodCIDR, n.CreationTimestamp.Unix()))
			}
			if err != nil {
				t.Fatal(err)
			}
			if rng.IntN(3) > 0 {
				continue
			}
			known.take(tb)
			fresh, want := newNodeTable(testReader(t)), view{}
			if err := fresh.Replace(list(), ""); err != nil {
				t.Fatal(err)
			}
			want.take(fresh)
			if !maps.Equal(known, want) {
				t.Fatalf("history %d, %q:\nthe follower knows %v\na fresh list shows %v", history, events, known, want)
			}
			for key := range want {
				if strings.Contains(key, "@") {
					contested++
				}
			}
		}
	}
	if contested == 0 {
		t.Error("no two Nodes ever claimed one podCIDR")
	}
}
