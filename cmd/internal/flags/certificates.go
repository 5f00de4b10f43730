package flags

import (
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
	add := func(file, fix string, expires time.Time, err error) {
		c := status.Certificate{File: file, Expires: expires, Fix: fix}
		if err != nil {
			c.Err = err.Error()
		}
		all = append(all, c)
	}
	if o.Etcd.Embedded && strings.HasPrefix(o.Etcd.ListenURL, "https://") {
		expires, err := pki.Dir(o.Etcd.PKIDir).Authority()
		add(o.Etcd.PKIDir, "overlayd pki rotate, and as its help tells: other hosts need other join files", expires, err)
	}
	switch expires, err := pki.Expires(o.Etcd.CertFile); {
	case o.Etcd.CertFile == "":
	case o.Etcd.JoinFile != "":
		add(o.Etcd.JoinFile, "on the first host: overlayd pki join-file NODE, and copy the file to "+o.Etcd.JoinFile, expires, err)
	default:
		add(o.Etcd.CertFile, "renew it: the file is read again at the next connection, or at SIGHUP", expires, err)
	}
	return all
}

// WarnOfCertificates logs which of them end soon, and which have ended.
func WarnOfCertificates(log *slog.Logger, all []status.Certificate, now time.Time) {
	for _, c := range all {
		switch left := c.Expires.Sub(now); {
		case c.Err != "" || left > status.CertificateNotice:
		case left > 0:
			log.Warn(fmt.Sprintf("the certificate in %s ends soon", c.File), "expires", c.Expires.UTC().Format(time.DateOnly), "fix", c.Fix)
		default:
			log.Warn(fmt.Sprintf("the certificate in %s has ended", c.File), "expired", c.Expires.UTC().Format(time.DateOnly), "fix", c.Fix)
		}
	}
}
