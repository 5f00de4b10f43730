package dataplane

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestLately: what was in the last ten minutes counts, and nothing older.
func TestLately(t *testing.T) {
	at := func(minute int) time.Time { return time.Unix(int64(minute)*60+7, 0) }
	var l lately
	if n := l.sum(at(100)); n != 0 {
		t.Errorf("without events %d", n)
	}
	for _, c := range []struct {
		minute int
		add    uint64
		want   uint64
	}{
		{100, 2, 2}, {100, 1, 3}, {101, 5, 8}, {109, 0, 8}, {110, 0, 5}, {111, 0, 0}, {111, 4, 4}, {500, 1, 1}, {1 << 40, 1, 1},
	} {
		l = l.add(at(c.minute), c.add)
		if n := l.sum(at(c.minute)); n != c.want {
			t.Errorf("minute %d: %d, want %d", c.minute, n, c.want)
		}
	}
}

// TestLatelyBackInTime: a clock that is set back loses no event and counts none twice.
func TestLatelyBackInTime(t *testing.T) {
	l := lately{}.add(time.Unix(6000, 0), 3)
	if n := l.sum(time.Unix(0, 0)); n > 3 {
		t.Errorf("%d events", n)
	}
}

// TestReporterLately: a part says how many of its repairs are of late, and no more once they are old.
func TestReporterLately(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := newReporter()
		r.Publish(StateOK, nil, ObjectStatus{Kind: "route", Wanted: 1, Have: 1}, ObjectStatus{Kind: "device"})
		r.Repaired(Change{Op: OpAdd, Kind: "route", Key: "a"}, Change{Op: OpAdd, Kind: "route", Key: "b"})
		before := r.Status()
		if o := before.Objects[0]; o.Lately != 2 || o.Repairs != 2 || !o.LastRepair.Equal(time.Now()) {
			t.Errorf("after two repairs: %+v", o)
		}
		if o := before.Objects[1]; o != (ObjectStatus{Kind: "device"}) {
			t.Errorf("of another kind: %+v", o)
		}
		r.Publish(StateOK, nil)
		time.Sleep(latelyMinutes*time.Minute + time.Minute)
		if o := r.Status().Objects[0]; o.Lately != 0 || o.Repairs != 2 {
			t.Errorf("eleven minutes later: %+v", o)
		}
		if before.Objects[0].Lately != 2 {
			t.Error("a value that was returned has changed")
		}
	})
}
