package etcd_test

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/etcd/etcdtest"
)

// TestFullEtcdCostsNoLease: an etcd that answers and does not write keeps the lease alive, over a restart
// of the daemon too. Only a lease whose entry is gone ends.
func TestFullEtcdCostsNoLease(t *testing.T) {
	for _, alarm := range []pb.AlarmType{pb.AlarmType_NOSPACE, pb.AlarmType_CORRUPT} {
		t.Run(alarm.String(), func(t *testing.T) {
			t.Parallel()
			costsNoLease(t, alarm)
		})
	}
}

func costsNoLease(t *testing.T, alarm pb.AlarmType) {
	c := newCluster(t)
	c.SetConfig(t, []byte(config))
	var log syncBuffer
	c.cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
	first := c.open(t)
	l := acquire(t, first, 1)
	before := c.entry(t, l.Key())
	etcdtest.Alarm(t, c.client, pb.AlarmRequest_ACTIVATE, alarm)
	renewed := renew(t, first, l)
	if again := acquire(t, first, 1, l.Subnet); again.Key() != l.Key() || again.Handle != l.Handle {
		t.Errorf("another session of the daemon gets %+v, want %+v", again, renewed)
	}

	second := c.open(t) // after a kill -9
	again := acquire(t, second, 1, l.Subnet)
	if again.Key() != l.Key() || again.Handle != l.Handle || c.entry(t, l.Key()) != before {
		t.Errorf("a restart gets %+v, want %+v", again, renewed)
	}
	if text := log.String(); strings.Count(text, "going on with the lease of the last run") != 2 {
		t.Errorf("the log says:\n%s", text)
	}
	again = renew(t, second, again)
	other, vteps := node(2)
	if l, err := c.open(t).Acquire(t.Context(), other, vteps); err == nil {
		t.Errorf("another node gets %+v", l)
	}
	if alarm == pb.AlarmType_CORRUPT { // nobody deletes
		return
	}
	c.DeleteRaw(t, l.Key())
	if _, err := second.Renew(t.Context(), again); !errors.Is(err, control.ErrGone) || errors.Is(err, control.ErrLost) {
		t.Errorf("renewal of what is gone: %v, want ErrGone", err)
	}
	etcdtest.Alarm(t, c.client, pb.AlarmRequest_DEACTIVATE, alarm)
	again = renew(t, second, again)
	if got, _ := c.GetRaw(t, l.Key()); !bytes.Equal(got, l.Value()) || again.Key() != l.Key() {
		t.Errorf("afterwards the entry is %s, the lease %+v", got, again)
	}
}

// renew renews l, which must succeed.
func renew(t *testing.T, s control.Store, l control.Lease) control.Lease {
	t.Helper()
	got, err := s.Renew(t.Context(), l)
	if err != nil {
		t.Fatalf("Renew: %v", err)
	}
	if got.Key() != l.Key() || time.Until(got.Expires) < 50*time.Second {
		t.Errorf("renewed %+v to %+v", l, got)
	}
	return got
}

// TestRenewWritesNothing: etcd applies nothing for a renewal of what is as it should be.
func TestRenewWritesNothing(t *testing.T) {
	c := newCluster(t)
	c.SetConfig(t, []byte(config))
	s := c.open(t)
	l := acquire(t, s, 1)
	before := c.served(t, "Txn")
	applied := c.applied(t)
	for range 5 {
		l = renew(t, s, l)
	}
	if got := c.applied(t) - applied; got != 0 {
		t.Errorf("5 renewals made etcd apply %d requests (%d transactions)", got, c.served(t, "Txn")-before)
	}
}

// TestCleanUpOfWhatIsGone: an etcd lease that is gone is no fault of etcd.
func TestCleanUpOfWhatIsGone(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.SetConfig(t, []byte(config))
	s := c.open(t)
	l := acquire(t, s, 1)
	c.Expire(t, l.Key())
	if err := s.Release(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	if st := s.Status(); st.Err != "" {
		t.Errorf("status %q", st.Err)
	}
}
