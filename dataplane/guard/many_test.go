package guard

import (
	"testing"

	"github.com/overlayd/overlayd/dataplane/netnstest"
	"github.com/overlayd/overlayd/dataplane/nft"
)

// TestTriesOnce: of many guards of a process only the first of a kind tries whether the kernel takes all that their rules need.
func TestTriesOnce(t *testing.T) {
	ns := netnstest.New(t)
	changes := func() (n uint32) {
		ns.Must(func() (err error) { n, err = nft.Generation(nft.Inet); return err })
		return n
	}
	config := testConfig(t)
	openIn(t, ns, config)
	before := changes()
	config.VNI = 2
	openIn(t, ns, config)
	if n := changes() - before; n != 1 { // the port is shut
		t.Errorf("%d changes, want 1", n)
	}
	config.VNI, config.GBP = 3, true
	before = changes()
	openIn(t, ns, config)
	if n := changes() - before; n != 3 {
		t.Errorf("another kind: %d changes, want 3", n)
	}
}
