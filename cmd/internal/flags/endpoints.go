package flags

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/overlayd/overlayd/dataplane/hostfile"
)

// checkEndpoints makes Endpoints of the list: flanneld skips empty entries, and gives those without a
// scheme TLS if there is a client certificate. Its errors show no URL: it may hold a password.
func (o *Etcd) checkEndpoints(p *problems) {
	scheme := "http"
	if o.CertFile != "" && o.KeyFile != "" {
		scheme = "https"
	}
	o.Endpoints = nil
	var bare []string
	for i, e := range strings.Split(o.endpoints, ",") {
		e = strings.TrimSpace(e)
		if e == "" {
			continue
		}
		bareHost := !strings.Contains(e, "://") && !strings.HasPrefix(e, "unix:")
		if bareHost {
			bare = append(bare, e)
			e = scheme + "://" + e
		}
		if !isEndpoint(e, bareHost) {
			p.add(fmt.Errorf("--etcd-endpoints: entry %d: want a URL such as http://127.0.0.1:2379, https://192.0.2.11:2379 or unix:///run/etcd.sock, with a port from 1 to 65535, and without user and password", i+1))
			return
		}
		o.Endpoints = append(o.Endpoints, e)
	}
	switch secure := o.secure(); {
	case len(o.Endpoints) == 0:
		p.bad("etcd-endpoints", "", "want at least one URL such as http://127.0.0.1:2379")
	case secure > 0 && secure < len(o.Endpoints):
		p.add(fmt.Errorf("--etcd-endpoints: %d of %d are https: want all of them or none", secure, len(o.Endpoints)))
	case len(bare) > 0:
		p.warn(fmt.Sprintf("--etcd-endpoints: %s: taken for %s", strings.Join(bare, ","), scheme), scheme+"://"+bare[0])
	}
}

// isEndpoint reports whether e, a URL, leads somewhere and holds no password. hostOnly: it may have no path.
func isEndpoint(e string, hostOnly bool) bool {
	u, err := url.Parse(e)
	switch {
	case err != nil || u.User != nil || hostOnly && u.Path != "":
		return false
	case u.Scheme == "http" || u.Scheme == "https":
		return u.Hostname() != "" && isPort(u.Port())
	}
	return u.Scheme == "unix" && u.Host+u.Path+u.Opaque != ""
}

// isPort reports whether a URL may have this port; empty: that of its scheme.
func isPort(text string) bool {
	n, err := strconv.ParseUint(text, 10, 16)
	return text == "" || err == nil && n > 0
}

// secure counts the endpoints with TLS.
func (o *Etcd) secure() (n int) {
	for _, e := range o.Endpoints {
		if strings.HasPrefix(e, "https://") {
			n++
		}
	}
	return n
}

// plain reports whether no endpoint can have TLS. One on a Unix socket can.
func (o *Etcd) plain() bool {
	return !slices.ContainsFunc(o.Endpoints, func(e string) bool { return !strings.HasPrefix(e, "http://") })
}

// checkFiles drops what flanneld does not use either: files for endpoints without TLS, half of a
// client certificate, a password without a user. It refuses files that cannot be read now: etcd
// would only report that at its first request.
func (o *Etcd) checkFiles(p *problems) {
	if o.Password != "" && o.Username == "" {
		p.warn("the etcd password is not used: it is given without a user", "--etcd-username")
		o.Password = ""
	}
	files := []struct {
		flag string
		path *string
	}{{"etcd-keyfile", &o.KeyFile}, {"etcd-certfile", &o.CertFile}, {"etcd-cafile", &o.CAFile}}
	half := (o.KeyFile == "") != (o.CertFile == "")
	for i, file := range files {
		switch path := *file.path; {
		case path == "":
		case o.plain():
			p.warn(fmt.Sprintf("--%s %s is not used: the endpoints of etcd are http", file.flag, path), "https:// in --etcd-endpoints")
			*file.path = ""
		case half && i < 2:
			p.warn(fmt.Sprintf("--%s %s is not used: a client certificate is a certificate and its key", file.flag, path), "--etcd-certfile and --etcd-keyfile")
			*file.path = ""
		default:
			if _, err := hostfile.Read(path); err != nil {
				p.add(fmt.Errorf("--%s: %w", file.flag, err))
			}
		}
	}
}
