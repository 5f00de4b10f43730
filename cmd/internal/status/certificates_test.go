package status

import (
	"strings"
	"testing"
	"time"
)

// TestCertificates: one that ends within 30 days is a warning, one that has ended is a fault.
func TestCertificates(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, c := range []struct {
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
		{left: time.Hour, err: "/etc/x: permission denied", id: "certificate_unreadable", state: Healthy},
	} {
		d := Daemon{At: now, Ready: true, Networks: []Network{{Ready: true, Certificates: []Certificate{{File: "/etc/x", Expires: now.Add(c.left), Err: c.err, Fix: "make it"}}}}}
		all := Judge(d)
		if c.id == "" {
			if len(all) > 0 {
				t.Errorf("%s: %+v", c.left, all)
			}
			continue
		}
		if len(all) != 1 || all[0].ID != c.id || all[0].State != c.state || all[0].Fix != "make it" || !strings.Contains(all[0].Text, "/etc/x") {
			t.Errorf("%s: %+v, want %s, %s", c.left, all, c.id, c.state)
		}
	}
}
