package etcd_test

import (
	"net/url"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/overlayd/overlayd/control/etcd/etcdtest"
)

// process is an etcd of one or more processes, with a proxy in front of each member.
type process struct {
	*cluster
	*etcdtest.Etcd
	proxies []*proxy
}

// newProcess starts an etcd with that number of members; path is its program, or empty for the version that this program links.
func newProcess(t *testing.T, path string, members int) *process {
	t.Helper()
	p := &process{cluster: &cluster{}}
	p.cfg.Prefix = prefix
	urls := freeURLs(t, 2*members)
	m := etcdtest.Members{Path: path, Peers: urls[:members], Clients: urls[members:]}
	for i := range members {
		m.Dirs = append(m.Dirs, t.TempDir())
		u, err := url.Parse(m.Clients[i])
		if err != nil {
			t.Fatal(err)
		}
		p.proxies = append(p.proxies, newProxy(t, u.Host))
		p.cfg.Endpoints = append(p.cfg.Endpoints, "http://"+p.proxies[i].addr())
	}
	p.Etcd = &etcdtest.Etcd{Members: m, Prefix: prefix, Connected: func(c *clientv3.Client) { p.client = c }}
	p.Run(t)
	return p
}

// allow sets up a user of the Stores, and returns what gives and takes its right to write.
func (p *process) allow(t *testing.T) (write func(may bool)) {
	t.Helper()
	p.cfg.Username, p.cfg.Password = etcdtest.User, etcdtest.User
	return p.Allow(t)
}
