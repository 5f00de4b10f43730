package status

import (
	"fmt"
	"time"
)

// Certificate is one by which this daemon reaches its store, or lets others in.
type Certificate struct {
	File    string    `json:"file"`
	Expires time.Time `json:"expires,omitzero"`
	Err     string    `json:"err,omitempty"` // why it cannot be read now
	Fix     string    `json:"fix,omitempty"` // how to get another
}

// CertificateNotice is how long before its end a certificate is warned of.
const CertificateNotice = 30 * 24 * time.Hour

// judgeCertificates says which certificates end soon, or have ended. The store is lost with one that has ended, at the next
// connection.
func judgeCertificates(certificates []Certificate, now time.Time) (all []Warning) {
	for _, c := range certificates {
		w := Warning{ID: "certificate_expires", State: Healthy, Fix: c.Fix}
		switch left := c.Expires.Sub(now); {
		case c.Err != "":
			w.ID, w.Text = "certificate_unreadable", "a certificate cannot be read, and what was read before is used: "+c.Err
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
