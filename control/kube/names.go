package kube

import (
	"errors"
	"regexp"
	"strings"
)

// names are the keys of the annotations, all below one prefix.
type names struct {
	managed, backendType            string
	data, publicIP, overwrite       string
	dataV6, publicIPv6, overwriteV6 string
	nodePublicIP, nodePublicIPv6    string
	facts                           string
}

// newNames forms the keys by flannel's rules, and refuses a prefix in flannel's words:
// "host.domain" gives "host.domain/backend-type", and "host.domain/a" or
// "host.domain/a-" gives "host.domain/a-backend-type".
func newNames(prefix string) (names, error) {
	p := prefix
	switch {
	case strings.Count(p, "/") > 1:
		return names{}, errors.New("annotation prefix " + quote(prefix) + ": subnet/kube: prefix can contain at most single slash")
	case !strings.Contains(p, "/"):
		p += "/"
	case !strings.HasSuffix(p, "/") && !strings.HasSuffix(p, "-"):
		p += "-"
	}
	form := regexp.MustCompile(`^(?:[a-z0-9_-]+\.)+[a-z0-9_-]+/(?:[a-z0-9_-]+-)?$`)
	if !form.MatchString(p) {
		return names{}, errors.New("annotation prefix " + quote(prefix) + ": subnet/kube: prefix must be in a format: fqdn/[0-9a-z-_]*")
	}
	return names{
		managed: p + "kube-subnet-manager", backendType: p + "backend-type",
		data: p + "backend-data", publicIP: p + "public-ip", overwrite: p + "public-ip-overwrite",
		dataV6: p + "backend-v6-data", publicIPv6: p + "public-ipv6", overwriteV6: p + "public-ipv6-overwrite",
		nodePublicIP: p + "node-public-ip", nodePublicIPv6: p + "node-public-ipv6",
		facts: p + "overlayd-node",
	}, nil
}

// written are the annotations that a lease consists of.
func (n names) written() []string {
	return []string{n.managed, n.backendType, n.data, n.publicIP, n.dataV6, n.publicIPv6, n.facts}
}
