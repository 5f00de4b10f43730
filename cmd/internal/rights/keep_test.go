package rights

import (
	"errors"
	"os"
	"os/exec"
	"testing"

	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// alone is set for a process of its own, as Keep changes all of it.
const alone = "OVERLAYD_TEST_KEEP"

// TestKeepBesideWithout: a thread that does without a capability for a moment does not keep the others from giving up theirs.
func TestKeepBesideWithout(t *testing.T) {
	if os.Getenv(alone) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestKeepBesideWithout$")
		cmd.Env = append(os.Environ(), alone+"=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	if !Has(DACOverride) {
		netnstest.Lacks(t, "capability to do without")
	}
	inside, done, ended := make(chan bool), make(chan struct{}), make(chan error)
	go func() {
		ended <- without(dac, func() error {
			inside <- Has(DACOverride)
			<-done
			return nil
		})
	}()
	if <-inside {
		t.Error("the thread uses the capability")
	}
	switch left, err := Keep(NetAdmin | DACOverride); {
	case withCgo && !errors.Is(err, errors.ErrUnsupported):
		t.Errorf("left %q, %v; want %v", left, err, errors.ErrUnsupported)
	case !withCgo && (err != nil || left != NetAdmin|DACOverride):
		t.Errorf("left %q, %v", left, err)
	}
	close(done)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
