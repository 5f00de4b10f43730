//go:build oldetcd

package etcd_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/etcd/etcdtest"
)

// otherEtcd is the environment variable with the path of an etcd of another version, such as that of Debian 12.
const otherEtcd = "OVERLAYD_ETCD"

// theOtherEtcd returns its path.
func theOtherEtcd(t *testing.T) string {
	t.Helper()
	path := os.Getenv(otherEtcd)
	if path == "" {
		t.Fatal(otherEtcd + " is not set: run make test-etcd")
	}
	return path
}

// TestOtherEtcdFaults is TestFaults of etcd.
func TestOtherEtcdFaults(t *testing.T) { testFaults(t, theOtherEtcd(t)) }

// TestOtherEtcdAuthentication: an etcd before 3.6 keeps leases alive for whoever it would refuse else.
func TestOtherEtcdAuthentication(t *testing.T) {
	t.Parallel()
	testAuthenticationTurnedOn(t, newProcess(t, theOtherEtcd(t), 1).cluster)
}

// TestOtherEtcdTokenLost: an etcd that has forgotten all tokens, because it was started again, and one whose password
// was another for a time, get the node back.
func TestOtherEtcdTokenLost(t *testing.T) {
	t.Parallel()
	p := newProcess(t, theOtherEtcd(t), 1)
	p.SetConfig(t, []byte(config))
	p.allow(t)
	s := p.open(t)
	l := acquire(t, s, 1)
	back := func(what string) {
		t.Helper()
		begin := time.Now()
		var err error
		eventually(t, what, func() bool {
			var renewed control.Lease
			if renewed, err = s.Renew(t.Context(), l); err == nil {
				l = renewed
			}
			return err == nil
		})
		if took := time.Since(begin); took > 10*time.Second {
			t.Errorf("%s: a renewal took %s, want 10s", what, took)
		}
	}
	p.Restart(t)
	back("restart")

	p.SetPassword(t, "other")
	eventually(t, "a refusal", func() bool { _, err := s.Network(t.Context()); return err != nil })
	p.SetPassword(t, etcdtest.User)
	back("password")
}

// TestOtherEtcdWriteRightLost: etcd before 3.7 keeps a lease alive for a user who may not write any more, over
// a restart of the daemon too.
func TestOtherEtcdWriteRightLost(t *testing.T) {
	p := newProcess(t, theOtherEtcd(t), 1)
	p.SetConfig(t, []byte(config))
	write := p.allow(t)
	var log bytes.Buffer
	s := p.open(t)
	l := acquire(t, s, 1)
	write(false)
	l = renew(t, s, l)
	p.cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
	second := p.open(t)
	if again := acquire(t, second, 1, l.Subnet); again.Key() != l.Key() || again.Handle != l.Handle {
		t.Errorf("a restart gets %+v, want %+v", again, l)
	}
	if !strings.Contains(log.String(), "going on with the lease of the last run") {
		t.Errorf("the log says:\n%s", log.String())
	}
	write(true)
	renew(t, second, l)
}

// TestOtherEtcdTokenOfALaterState: etcd neither answers nor refuses a token that it made in a state which a restore has undone. The
// node gets another.
func TestOtherEtcdTokenOfALaterState(t *testing.T) {
	t.Parallel()
	p := newProcess(t, theOtherEtcd(t), 1)
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
