package status

import (
	"fmt"
	"time"
)

// Certificate is one by which this daemon reaches its store, or lets others in.
type Certificate struct {
	File    string    `json:"file"`
	Begins  time.Time `json:"begins,omitzero"`
	Expires time.Time `json:"expires,omitzero"`
	Err     string    `json:"err,omitempty"` // why it cannot be used now
	Fix     string    `json:"fix,omitempty"` // how to get another
}

// CertificateNotice is how long before its end a certificate is warned of.
const CertificateNotice = 30 * 24 * time.Hour

// FixClock is what to do about a certificate that is not valid yet.
const FixClock = "set the clock of this host, by a time service such as systemd-timesyncd or chrony; if it is right, set that of the host that made the certificate, and make another"

// judgeCertificates says which certificates are not valid yet, end soon, or have ended. The store is lost with one that has ended, at the next
// connection.
func judgeCertificates(certificates []Certificate, now time.Time) (all []Warning) {
	for _, c := range certificates {
		w := Warning{ID: "certificate_expires", State: Healthy, Fix: c.Fix}
		switch left := c.Expires.Sub(now); {
		case c.Err != "":
			w.ID, w.Text = "certificate_unreadable", "a certificate cannot be used, and what was read before is used: "+c.Err
		case now.Before(c.Begins):
			w.ID, w.State, w.Fix = "certificate_not_yet_valid", Degraded, FixClock
			w.Text = fmt.Sprintf("the certificate in %s is not valid before %s, and the clock of this host says %s", c.File, c.Begins.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339))
		case left <= 0:
			w.ID, w.State, w.Since = "certificate_expired", Degraded, c.Expires
			w.Text = fmt.Sprintf("the certificate in %s has ended on %s: no new connection is made with it", c.File, c.Expires.UTC().Format(time.DateOnly))
		case left <= CertificateNotice:
			w.Text = fmt.Sprintf("the certificate in %s ends on %s, in %s", c.File, c.Expires.UTC().Format(time.DateOnly), Short(left))
		default:
			continue
		}
		all = append(all, w)
	}
	return all
}
