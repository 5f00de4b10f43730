package etcdnets

import (
	"fmt"
	"slices"
	"testing"
)

// TestManyNetworks: of more networks than are remembered the oldest are, in whatever order they come, and what is left out is counted. When
// one goes and no other is known, another list is due.
func TestManyNetworks(t *testing.T) {
	t.Parallel()
	n, name := newNetworks(), func(created int) string { return fmt.Sprint("net", created) }
	const many = 10 * maxUsable
	var want []string
	for i := range many {
		created := 1 + i*7919%many // 7919 is prime
		if n.put(name(created), int64(created)); len(n.usable) > maxUsable {
			t.Fatalf("%d networks are remembered", len(n.usable))
		}
		if i < maxNetworks {
			want = append(want, name(i+1))
		}
	}
	slices.Sort(want)
	if names, left := n.names(); !slices.Equal(names, want) || left != many-maxNetworks {
		t.Errorf("%d networks are served, and %d are not; want the oldest, and %d", len(names), left, many-maxNetworks)
	}
	if !n.omits("younger", many+1, false) || !n.omits("younger", many+1, true) || n.omits("older", 0, false) || n.omits(name(1), many+1, false) || n.omitted+len(n.usable) != many+1 {
		t.Error("a younger network is not left out, or an older or a known one is")
	}
	for i := range maxNetworks {
		n.remove(name(i + 1))
	}
	if _, left := n.names(); !n.hasRoom() || left != n.omitted {
		t.Errorf("no room, although %d are left out", left)
	}
	if !n.omits("youngest", many+2, false) {
		t.Error("one takes the room of an older one")
	}
	for i := range many {
		n.remove(name(i + 1))
	}
	n.remove("younger")
	n.remove("youngest")
	if _, left := n.names(); n.hasRoom() || left != 0 {
		t.Errorf("%d are left out when all have gone", left)
	}
}
