package etcd_test

import (
	"fmt"
	"testing"
	"time"
)

// TestTokenOfALaterState: etcd neither answers nor refuses a token that it made in a state which a restore has undone. The
// node gets another.
func TestTokenOfALaterState(t *testing.T) {
	t.Parallel()
	p := newProcess(t, "", 1)
	p.SetConfig(t, []byte(config))
	p.allow(t)
	snapshot := p.Snapshot(t)
	for i := range 50 {
		p.SetConfig(t, fmt.Appendf(nil, "%s\n%*s", config, i, "")) // etcd's log grows
	}
	s := p.open(t)
	l := acquire(t, s, 1)
	p.Restore(t, snapshot)
	begin := time.Now()
	eventually(t, "a renewal", func() bool {
		_, err := s.Renew(t.Context(), l)
		return err == nil
	})
	if took := time.Since(begin); took > 10*time.Second {
		t.Errorf("a renewal took %s, want 10s", took)
	}
}
