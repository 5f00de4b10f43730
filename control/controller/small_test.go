package controller

import (
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane"
)

func TestRenewIn(t *testing.T) {
	for _, tt := range []struct{ ttl, margin, want time.Duration }{
		{24 * time.Hour, time.Hour, 23 * time.Hour},
		{time.Hour, time.Hour, 30 * time.Minute},
		{time.Hour, 40 * time.Minute, 30 * time.Minute},
		{10 * time.Second, time.Hour, 5 * time.Second},
		{0, time.Hour, 0},
		{-time.Minute, time.Hour, 0},
	} {
		if got := renewIn(tt.ttl, tt.margin); got > tt.want || got < tt.want*19/20 {
			t.Errorf("renewIn(%v, %v) = %v, want %v less up to 5 %%", tt.ttl, tt.margin, got, tt.want)
		}
	}
	for ttl, high := range map[time.Duration]time.Duration{24 * time.Hour: 4 * time.Second, time.Minute: 3 * time.Second, 0: 100 * time.Millisecond} {
		if b := renewRetry(ttl); b.High != high || b.Low > b.High {
			t.Errorf("renewRetry(%v) = %v..%v, want up to %v", ttl, b.Low, b.High, high)
		}
	}
}

// TestExpiryOfLease: a lease without an end says nothing about it.
func TestExpiryOfLease(t *testing.T) {
	for _, l := range []control.Lease{{}, {Expires: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}} {
		var b strings.Builder
		slog.New(slog.NewTextHandler(&b, nil)).Info("x", expiry(l), "y", 1)
		if has := strings.Contains(b.String(), "expires="); has != !l.Expires.IsZero() || !strings.HasSuffix(b.String(), "y=1\n") {
			t.Errorf("%v: %s", l.Expires, b.String())
		}
	}
}

// TestReasonOfLostPeers: a peer that no direct route leads to says why in its status.
func TestReasonOfLostPeers(t *testing.T) {
	for err, want := range map[error]string{dataplane.ErrOffLink: "off_link", dataplane.ErrRouteTaken: "route_taken", fmt.Errorf("x"): "not_programmed"} {
		s := PeerStatus{State: PeerFailed, Subnet: netip.Prefix{}}
		if s.explain(&dataplane.PeerError{Err: err}, Fault{}); s.Reason != want {
			t.Errorf("%v: reason %s, want %s", err, s.Reason, want)
		}
	}
}
