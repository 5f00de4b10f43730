package etcd

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/overlayd/overlayd/control"
)

// TestKeysOfClonesAreBounded: however many keys a clone seems to have, few are remembered, and it is gone with the last of them.
func TestKeysOfClonesAreBounded(t *testing.T) {
	var l cloneList
	const keys = 1 << 16
	for i := range keys {
		l.saw(fmt.Sprint("key ", i), control.Clone{Host: "evil", PublicIP: netip.MustParseAddr("192.0.2.9"), Boot: fmt.Sprint(i % (2 * maxClones))})
	}
	if n := len(l.keys()); n == 0 || n > maxClones*maxCloneKeys {
		t.Errorf("%d keys are remembered, want at most %d", n, maxClones*maxCloneKeys)
	}
	for i := range keys {
		l.leave(fmt.Sprint("key ", i))
	}
	for _, c := range l.list() {
		if c.Gone.IsZero() {
			t.Errorf("%+v is not gone", c)
		}
	}
	if n := len(l.list()); n != maxClones {
		t.Errorf("%d clones, want %d", n, maxClones)
	}
}
