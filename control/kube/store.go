package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/netip"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/hostfile"
	"github.com/overlayd/overlayd/dataplane/pace"
)

const (
	callTimeout = 10 * time.Second // of one request other than a watch
	readyRetry  = time.Second      // between attempts of MarkReady
)

// Store is control.Store on the Kubernetes API. Its methods may be called from several
// goroutines.
type Store struct {
	cfg   Config
	names names
	api   *client
	http  *http.Client // of api

	remotes *remotes // of http
	control.StoreHealth
	silence failures // see noteSilence

	mu        sync.Mutex
	node      string                  // the own Node's name; "" before it is known
	network   control.Network         // of the last Acquire
	published control.Lease           // what that had to publish, before overwrites and without subnets; zero: it has not succeeded
	watches   map[*nodeTable]struct{} // they judge the own Node by that
	ready     bool                    // MarkReady was called
	rivals    pace.Notices            // see logRival
	tells     *bool                   // see mayTell; nil: not known
}

var (
	_ control.Store         = (*Store)(nil)
	_ control.ConfigWatcher = (*Store)(nil)
	_ control.Publisher     = (*Store)(nil)
	_ control.ReadyMarker   = (*Store)(nil)
	_ control.EventTeller   = (*Store)(nil)
	_ control.AddressSource = (*Store)(nil)
	_ control.Fitter        = (*Store)(nil)
	_ control.StoreReporter = (*Store)(nil)
	_ io.Closer             = (*Store)(nil)
)

// Open checks cfg and returns a Store. It reaches no server, so that one that is down is
// not an error here. An error names the setting and its value. The caller must Close the Store.
func Open(_ context.Context, cfg Config) (*Store, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	n, err := newNames(cfg.AnnotationPrefix)
	if err != nil {
		return nil, err
	}
	r, err := cfg.restConfig()
	if err != nil {
		return nil, err
	}
	conns := new(remotes)
	r.Dial = conns.dial(r.Dial)
	s := &Store{cfg: cfg, names: n, remotes: conns, node: cfg.NodeName, silence: failures{log: cfg.Log},
		StoreHealth: control.StoreHealth{Kind: "kubernetes", Endpoint: endpointOf(r)}}
	if s.http, err = httpClient(r, s.noteSilence); err != nil {
		return nil, fmt.Errorf("use API server %q: %w", r.Host, err)
	}
	if s.api, err = newClient(r, s.http); err != nil {
		return nil, fmt.Errorf("use API server %q: %w", r.Host, err)
	}
	return s, nil
}

// Close ends the connections to the API server. Watches must have been ended through their
// contexts before: a connection in use is not closed.
func (s *Store) Close() error {
	utilnet.CloseIdleConnectionsFor(s.http.Transport)
	return nil
}

// Network implements control.Store. It reads the file each time; no file is
// ErrNoNetwork. What the config says of subnets to lease is not looked at, as
// Kubernetes decides that.
func (s *Store) Network(ctx context.Context) (control.Network, error) {
	if err := ctx.Err(); err != nil {
		return control.Network{}, err
	}
	text, err := hostfile.Read(s.cfg.NetConfigPath)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return control.Network{}, fmt.Errorf("%w: no file %s", control.ErrNoNetwork, s.cfg.NetConfigPath)
	case err != nil:
		return control.Network{}, fmt.Errorf("read network config: %w", err)
	}
	n, err := control.ParsePodNetwork(text)
	if err != nil {
		return control.Network{}, fmt.Errorf("%s: %w", s.cfg.NetConfigPath, err)
	}
	return n, nil
}

// Acquire implements control.Store: it publishes vteps on the own Node. A Node that has no
// podCIDR yet is an error like any other, to be tried again. ErrTaken and
// ErrNoSubnet do not happen. The lease does not expire.
func (s *Store) Acquire(ctx context.Context, node control.Node, vteps []dataplane.VTEP) (control.Lease, error) {
	network, err := s.Network(ctx)
	if err != nil {
		return control.Lease{}, err
	}
	published, err := network.Publish(node, vteps)
	if err != nil {
		return control.Lease{}, err
	}
	s.want(control.Network{}, control.Lease{}) // an earlier Acquire of this Store may have had another config
	l, n, err := s.own(ctx, network, published)
	if err != nil {
		return control.Lease{}, err
	}
	if err := node.CheckSubnets(l.Subnet, l.IPv6Subnet); err != nil {
		return control.Lease{}, fmt.Errorf("node %s: podCIDRs %q: %w: give the node others", quote(n.Name), n.Spec.PodCIDRs, err)
	}
	if old, ok, err := s.reader(network).lease(n); ok && err == nil {
		l = node.KeepMACs(l, old)
	}
	published.Backend, published.BackendV6 = l.Backend, l.BackendV6
	if l, err = s.publish(ctx, n, l); err != nil {
		return control.Lease{}, err
	}
	s.want(network, published)
	return l, nil
}

// Renew implements control.Store: it puts right what the own Node does not say as it
// should, and takes over what an overwrite annotation says now. ErrLost: the Node has
// other podCIDRs, because it was deleted and made again. A Node that is gone is not a loss. The network config that counts is that of
// Acquire: another one may be held, or refused.
func (s *Store) Renew(ctx context.Context, l control.Lease) (control.Lease, error) {
	s.mu.Lock()
	network, published := s.network, s.published
	s.mu.Unlock()
	if published == (control.Lease{}) { // this Store has acquired nothing
		var err error
		if network, err = s.Network(ctx); err != nil {
			return control.Lease{}, err
		}
		published = l
	}
	published.Backend, published.BackendV6 = l.Backend, l.BackendV6
	now, n, err := s.own(ctx, network, published)
	switch {
	case err != nil:
		return control.Lease{}, err
	case now.Subnet != l.Subnet || now.IPv6Subnet != l.IPv6Subnet:
		return control.Lease{}, fmt.Errorf("%w: node %s has podCIDRs %q now", control.ErrLost, quote(n.Name), n.Spec.PodCIDRs)
	}
	s.logRival(ctx, n, l)
	s.logCondition(ctx, n)
	return s.publish(ctx, n, now)
}

// logRival says that n, the own Node, publishes another address than l, which this process has published last: it
// is mostly that of another host with the same Node name.
func (s *Store) logRival(ctx context.Context, n *corev1.Node, l control.Lease) {
	name, own := s.names.publicIP, l.PublicIP
	if !own.IsValid() {
		name, own = s.names.publicIPv6, l.PublicIPv6
	}
	other := n.Annotations[name]
	if other == "" || other == own.String() {
		return
	}
	s.mu.Lock()
	due, _ := s.rivals.Due(time.Now(), pace.Notice{Key: other})
	s.mu.Unlock()
	for range due {
		s.cfg.Log.WarnContext(ctx, "something else has published another address on this Node: written again",
			"node", quote(n.Name), "public_ip", own, "was", quote(other), "fix", "give each host a Node name of its own")
	}
}

// logCondition says that somebody has said of n, the own Node, that its network is not available, after this process has said that it is.
func (s *Store) logCondition(ctx context.Context, n *corev1.Node) {
	for _, c := range n.Status.Conditions {
		if c.Type != corev1.NodeNetworkUnavailable || c.Status == corev1.ConditionFalse || !s.isReady() {
			continue
		}
		s.mu.Lock()
		due, _ := s.rivals.Due(time.Now(), pace.Notice{Key: "condition " + string(c.Type)})
		s.mu.Unlock()
		for range due {
			s.cfg.Log.WarnContext(ctx, "something else has set the condition NetworkUnavailable of this Node: set to False again",
				"status", quote(string(c.Status)), "reason", quote(c.Reason), "fix", "if it keeps being set, turn off the routes of the cloud controller (--configure-cloud-routes=false)")
		}
	}
}

// own returns the own Node and the lease that it is to have.
func (s *Store) own(ctx context.Context, network control.Network, published control.Lease) (control.Lease, *corev1.Node, error) {
	n, err := s.get(ctx)
	if err != nil {
		return control.Lease{}, nil, err
	}
	l, err := s.reader(network).own(n, network, published)
	return l, n, err
}

// Fits implements control.Fitter. While the own Node does not fit as a watch has seen it last, the API server is not asked.
func (s *Store) Fits(ctx context.Context, network control.Network) error {
	if n := s.seen(); n != nil {
		if err := s.reader(network).fits(n, network); err != nil {
			return err
		}
	}
	n, err := s.get(ctx)
	if err != nil {
		return err
	}
	return s.reader(network).fits(n, network)
}

// Published implements control.Publisher: it returns the lease that this process's own Node
// publishes, whoever has written it and under whatever address. Subnets outside the network are
// included.
func (s *Store) Published(ctx context.Context, _ control.Node) ([]control.Lease, error) {
	node, err := s.get(ctx)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, err
	}
	l, ok, err := s.reader(control.Network{EnableIPv4: true, EnableIPv6: true}).lease(node)
	if err != nil || !ok {
		return nil, err
	}
	return []control.Lease{l}, nil
}

// Release implements control.Store: it removes the annotations that make a lease, if they
// are l's. The podCIDR stays the Node's, and the condition NetworkUnavailable as it is:
// cordon a Node that is to get no pods.
func (s *Store) Release(ctx context.Context, l control.Lease) error {
	node, err := s.get(ctx)
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return err
	}
	if !s.reader(control.Network{}).says(node, l) {
		return nil // somebody else's, or released before
	}
	_, err = s.patch(ctx, node, nil, false)
	return err
}

// MarkReady sets the own Node's condition NetworkUnavailable to False, if Config wants
// that, and tries again until it has succeeded or ctx ends. Later Acquire and Renew calls
// set it again if the Node has lost it, or somebody has set it to True: watches show that.
func (s *Store) MarkReady(ctx context.Context) error {
	if !s.cfg.SetNodeNetworkUnavailable {
		return nil
	}
	s.mu.Lock()
	s.ready = true
	s.mu.Unlock()
	every := pace.Backoff{Low: readyRetry, High: readyRetry}
	for logged := false; ; logged = true {
		err := s.markReady(ctx)
		if err == nil {
			return nil
		}
		if !logged && ctx.Err() == nil {
			s.cfg.Log.WarnContext(ctx, "set node condition NetworkUnavailable: trying again", "err", err)
		}
		if !pace.Sleep(ctx, every.Next(), nil) {
			return ctx.Err()
		}
	}
}

func (s *Store) markReady(ctx context.Context) error {
	node, err := s.get(ctx)
	if err != nil {
		return err
	}
	text, err := change(node, nil, nil, true, time.Now())
	if err != nil || text == nil {
		return err
	}
	_, err = s.send(ctx, node, text)
	return err
}

// PublicIPs returns the addresses that the own Node's annotations node-public-ip and
// node-public-ipv6 give, each invalid if its annotation is missing. They are addresses of this host,
// and act as --public-ip and --public-ipv6 do, before them.
func (s *Store) PublicIPs(ctx context.Context) (v4, v6 netip.Addr, err error) {
	node, err := s.get(ctx)
	if err != nil {
		return v4, v6, err
	}
	for _, f := range []struct {
		name string
		bits int
		addr *netip.Addr
	}{{s.names.nodePublicIP, 32, &v4}, {s.names.nodePublicIPv6, 128, &v6}} {
		if text := node.Annotations[f.name]; text != "" {
			if *f.addr, err = control.ParseAddr("annotation "+f.name, text, f.bits); err != nil {
				return netip.Addr{}, netip.Addr{}, fmt.Errorf("node %s: %w", quote(node.Name), err)
			}
		}
	}
	return v4, v6, nil
}

func (s *Store) reader(n control.Network) reader {
	return reader{names: s.names, ipv4: n.EnableIPv4, ipv6: n.EnableIPv6}
}
