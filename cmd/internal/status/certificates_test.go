package status

import (
	"strings"
	"testing"
	"time"
)

// TestCertificates: one that ends within 30 days is a warning, one that has ended or is not valid yet is a fault.
func TestCertificates(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, c := range []struct {
		from  time.Duration
		left  time.Duration
		err   string
		id    string // "": no warning
		state State
	}{
		{left: 365 * 24 * time.Hour},
		{left: CertificateNotice + time.Second},
		{left: CertificateNotice, id: "certificate_expires", state: Healthy},
		{left: time.Second, id: "certificate_expires", state: Healthy},
		{left: 0, id: "certificate_expired", state: Degraded},
		{left: -time.Hour, id: "certificate_expired", state: Degraded},
		{from: time.Second, left: time.Hour, id: "certificate_not_yet_valid", state: Degraded},
		{from: -time.Second, left: 365 * 24 * time.Hour},
		{left: time.Hour, err: "/etc/x: permission denied", id: "certificate_unreadable", state: Healthy},
	} {
		d := Daemon{At: now, Ready: true, Networks: []Network{{Ready: true, Certificates: []Certificate{{File: "/etc/x", Begins: now.Add(c.from), Expires: now.Add(c.left), Err: c.err, Fix: "make it"}}}}}
		all := Judge(d)
		if c.id == "" {
			if len(all) > 0 {
				t.Errorf("%s: %+v", c.left, all)
			}
			continue
		}
		fix, says := "make it", "/etc/x"
		if c.from > 0 {
			fix, says = FixClock, "/etc/x is not valid before 2026-01-02T03:04:06Z, and the clock of this host says 2026-01-02T03:04:05Z"
		}
		if len(all) != 1 || all[0].ID != c.id || all[0].State != c.state || all[0].Fix != fix || !strings.Contains(all[0].Text, says) {
			t.Errorf("%s: %+v, want %s, %s", c.left, all, c.id, c.state)
		}
	}
}
