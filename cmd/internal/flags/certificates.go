package flags

import (
	"crypto/x509"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/overlayd/overlayd/cmd/internal/pki"
	"github.com/overlayd/overlayd/cmd/internal/status"
)

// Certificates returns those by which a daemon with these flags reaches etcd, or lets others in, as they are now.
func (o *Flags) Certificates() (all []status.Certificate) {
	if o.Kube.Enabled {
		return nil
	}
	add := func(file, fix string, is *x509.Certificate, err error) {
		c := status.Certificate{File: file, Fix: fix}
		if err != nil {
			c.Err = err.Error()
		} else {
			c.Begins, c.Expires = is.NotBefore, is.NotAfter
		}
		all = append(all, c)
	}
	e := &o.Etcd
	if e.Embedded && strings.HasPrefix(e.ListenURL, "https://") {
		is, err := pki.Dir(e.PKIDir).Authority()
		add(e.PKIDir, "overlayd pki rotate, and as its help tells: other hosts need other join files", is, err)
	}
	switch own, err := pki.ReadClient(e.CertFile, e.KeyFile, e.CAFile); {
	case e.JoinFile != "":
		add(e.JoinFile, "on the first host: overlayd pki join-file NODE, and copy the file to "+e.JoinFile, own, err)
	case e.CertFile != "":
		add(e.CertFile, "renew it: the file is read again at the next connection, or at SIGHUP", own, err)
	case err != nil:
		add(e.CAFile, "put the authority of that etcd there: the file is read again at the next connection, or at SIGHUP", nil, err)
	}
	return all
}

// WarnOfCertificates logs which of them end soon, and which have ended.
func WarnOfCertificates(log *slog.Logger, all []status.Certificate, now time.Time) {
	for _, c := range all {
		switch left := c.Expires.Sub(now); {
		case c.Err != "":
		case now.Before(c.Begins):
			log.Warn(fmt.Sprintf("the certificate in %s is not valid yet", c.File), "begins", c.Begins.UTC().Format(time.RFC3339), "clock", now.UTC().Format(time.RFC3339), "fix", status.FixClock)
		case left > status.CertificateNotice:
		case left > 0:
			log.Warn(fmt.Sprintf("the certificate in %s ends soon", c.File), "expires", c.Expires.UTC().Format(time.DateOnly), "fix", c.Fix)
		default:
			log.Warn(fmt.Sprintf("the certificate in %s has ended", c.File), "expired", c.Expires.UTC().Format(time.DateOnly), "fix", c.Fix)
		}
	}
}
