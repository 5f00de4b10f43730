package main

import (
	"errors"
	"fmt"

	"github.com/spf13/pflag"
)

// unsupported are flannel's flags that this version does not have. They are
// known, so that a flanneld command line gets a reason and not "unknown flag",
// and so that giving one its inert value is no error.
var unsupported = []struct{ name, inert, why string }{
	{"ip-masq", "false", "overlayd does not install masquerade rules yet; let the CNI plugin or Docker masquerade"},
	{"kube-subnet-mgr", "false", "overlayd does not use the Kubernetes API yet; use etcd"},
	{"public-ipv6", "", "IPv6 underlays are not supported yet"},
	{"ip-blackhole-route", "false", "overlayd does not add a blackhole route yet"},
	{"healthz-port", "0", "overlayd has no health endpoint yet"},
}

func registerUnsupported(f *pflag.FlagSet) {
	for _, u := range unsupported {
		f.String(u.name, u.inert, u.why)
		flag := f.Lookup(u.name)
		flag.Hidden = true
		if u.inert == "false" {
			flag.NoOptDefVal = "true"
		}
	}
}

func refuseUnsupported(f *pflag.FlagSet) (err error) {
	for _, u := range unsupported {
		if v := f.Lookup(u.name).Value.String(); v != u.inert && v != "" {
			err = errors.Join(err, fmt.Errorf("--%s=%s: %s", u.name, v, u.why))
		}
	}
	return err
}
