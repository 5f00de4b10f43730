package kube

import (
	"errors"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"

	"github.com/overlayd/overlayd/control"
)

// reader makes leases of Nodes. Nodes are written by others: everything in them is checked.
type reader struct {
	names      names
	ipv4, ipv6 bool // families of the network; podCIDRs of another are not looked at
	// isOwn reports whether a Node is the own one. wanted returns the lease that it has to publish, or what is wrong with the Node; ok is
	// false if nobody knows that. Both may be nil.
	isOwn  func(name string) bool
	wanted func(*corev1.Node) (l control.Lease, ok bool, err error)
	// isReady reports whether the own Node is to say that its network is available; it may be nil.
	isReady func() bool
	// ignored is told of facts that cannot be read; it may be nil.
	ignored func(node string, err error)
}

// quote bounds what is printed of a value.
func quote(s string) string { return fmt.Sprintf("%.64q", s) }

// lease returns the lease that n publishes. ok is false if overlayd and flannel do not manage n. With an error, which names
// the Node, the field and the value, the lease has the subnets as far as they can be
// read and the revisions, and ok is true.
func (r reader) lease(n *corev1.Node) (l control.Lease, ok bool, err error) {
	n = r.trim(n) // as a list does: a Node is judged alike, however it is read
	if n.Annotations[r.names.managed] != "true" {
		return control.Lease{}, false, nil
	}
	l.CreateRevision, l.ModRevision = revisions(n)
	if l.Subnet, l.IPv6Subnet, err = r.subnets(n); err == nil {
		err = r.vteps(n, &l)
	}
	if err == nil {
		l.Facts = r.facts(n)
		err = r.checkOwn(n, l)
	}
	if err != nil {
		err = fmt.Errorf("node %s: %w", quote(n.Name), err)
	}
	return l, true, err
}

// checkOwn returns an error in three cases: an overwrite annotation of the own Node has another address than its lease, or no address at all,
// or somebody has set the Node's network to unavailable. The Controller then has the lease renewed, and shows why if that fails.
func (r reader) checkOwn(n *corev1.Node, l control.Lease) error {
	if r.isOwn == nil || !r.isOwn(n.Name) {
		return nil
	}
	w, ok, err := r.wanted(n)
	switch {
	case !ok:
	case err != nil:
		return err
	case w.PublicIP != l.PublicIP:
		return fmt.Errorf("annotation %s %s is to be %s", r.names.publicIP, l.PublicIP, w.PublicIP)
	case w.PublicIPv6 != l.PublicIPv6:
		return fmt.Errorf("annotation %s %s is to be %s", r.names.publicIPv6, l.PublicIPv6, w.PublicIPv6)
	case w.Facts != l.Facts:
		return fmt.Errorf("annotation %s %s is to be %s", r.names.facts, quote(n.Annotations[r.names.facts]), w.Facts.JSON())
	case r.isReady != nil && r.isReady() && !isAvailable(n):
		return errors.New("condition NetworkUnavailable is to be False")
	}
	return nil
}

// facts reads what the node says of itself. What cannot be read says nothing, and costs no lease.
func (r reader) facts(n *corev1.Node) control.NodeFacts {
	text := n.Annotations[r.names.facts]
	if text == "" {
		return control.NodeFacts{}
	}
	f, err := control.ParseNodeFacts([]byte(text))
	if len(text) > maxAnnotation {
		f, err = control.NodeFacts{}, fmt.Errorf("%s has more than %d bytes", quote(text), maxAnnotation)
	}
	if err != nil && r.ignored != nil {
		r.ignored(n.Name, fmt.Errorf("annotation %s: %w", r.names.facts, err))
	}
	return f
}

// revisions returns the Node's creation time in seconds, and that plus its
// resourceVersion: a number that changes with every write and is not below the first.
func revisions(n *corev1.Node) (create, mod int64) {
	create = max(n.CreationTimestamp.Unix(), 1)
	return create, create + versionNumber(n.ResourceVersion)
}

// subnets returns the podCIDRs of the network's families, one of each at most.
func (r reader) subnets(n *corev1.Node) (v4, v6 netip.Prefix, err error) {
	cidrs := n.Spec.PodCIDRs
	if len(cidrs) == 0 && n.Spec.PodCIDR != "" {
		cidrs = []string{n.Spec.PodCIDR}
	}
	switch {
	case len(cidrs) == 0:
		return v4, v6, errors.New("pod cidr not assigned")
	case len(cidrs) > 2:
		return v4, v6, fmt.Errorf("pod cidrs should be IPv4/IPv6 only or dualstack: there are %d", len(cidrs))
	}
	for _, s := range cidrs {
		p, err := netip.ParsePrefix(s)
		if err != nil || p.Addr().Is4In6() {
			return netip.Prefix{}, netip.Prefix{}, fmt.Errorf("podCIDR %s is not a CIDR", quote(s))
		}
		family := &v4
		if p.Addr().Is6() {
			family = &v6
		}
		if family.IsValid() {
			return netip.Prefix{}, netip.Prefix{}, fmt.Errorf("pod cidrs should be IPv4/IPv6 only or dualstack: there are %s and %s", family, p)
		}
		*family = p.Masked()
	}
	if !r.ipv4 {
		v4 = netip.Prefix{}
	}
	if !r.ipv6 {
		v6 = netip.Prefix{}
	}
	if !v4.IsValid() && !v6.IsValid() {
		return v4, v6, fmt.Errorf("podCIDRs %q are not of the network's family", cidrs)
	}
	return v4, v6, nil
}

// vteps reads the annotations into l. A VTEP has an address and data; a Node may have
// those of one family only, whatever its subnets, but must have one.
func (r reader) vteps(n *corev1.Node, l *control.Lease) (err error) {
	a := n.Annotations
	switch t := a[r.names.backendType]; t {
	case control.BackendVXLAN:
		l.BackendType = control.BackendVXLAN // and not a part of what was read
	case control.BackendHostGW, "": // of alloc, or not given
		if t != "" {
			l.BackendType = control.BackendHostGW
		}
		return r.addrs(a, l)
	default:
		l.BackendType = fmt.Sprintf("%.40s", t)
		return nil // the RIB refuses it; what its data mean nobody here knows
	}
	if l.PublicIP, l.Backend, err = readVTEP(a, r.names.publicIP, r.names.data, 32); err != nil {
		return err
	}
	if l.PublicIPv6, l.BackendV6, err = readVTEP(a, r.names.publicIPv6, r.names.dataV6, 128); err != nil {
		return err
	}
	if *l = l.WithoutStandIns(); l.PublicIP.IsValid() || l.PublicIPv6.IsValid() {
		return nil
	}
	return fmt.Errorf("annotations %s %s and %s %s are not both set, nor their IPv6 forms", r.names.publicIP,
		quote(a[r.names.publicIP]), r.names.data, quote(a[r.names.data]))
}

// addrs reads the public IPs of a Node whose backend has no data.
func (r reader) addrs(a map[string]string, l *control.Lease) (err error) {
	for _, f := range []struct {
		name string
		bits int
		addr *netip.Addr
	}{{r.names.publicIP, 32, &l.PublicIP}, {r.names.publicIPv6, 128, &l.PublicIPv6}} {
		if a[f.name] == "" {
			continue
		}
		if *f.addr, err = control.ParseAddr("annotation "+f.name, a[f.name], f.bits); err != nil {
			return err
		}
	}
	if l.BackendType != "" && !l.PublicIP.IsValid() && !l.PublicIPv6.IsValid() {
		return fmt.Errorf("annotations %s and %s are not set", r.names.publicIP, r.names.publicIPv6)
	}
	return nil
}

// readVTEP reads the VTEP of the family with bits-bit addresses; a VTEP that lacks
// its address or its data does not count.
func readVTEP(a map[string]string, ip, data string, bits int) (netip.Addr, control.VTEPData, error) {
	if a[ip] == "" || a[data] == "" {
		return netip.Addr{}, control.VTEPData{}, nil
	}
	addr, err := control.ParseAddr("annotation "+ip, a[ip], bits)
	if err != nil {
		return netip.Addr{}, control.VTEPData{}, err
	}
	if len(a[data]) > maxAnnotation {
		return netip.Addr{}, control.VTEPData{}, fmt.Errorf("annotation %s %s has more than %d bytes", data, quote(a[data]), maxAnnotation)
	}
	d, err := control.ParseVTEPData("annotation "+data, a[data])
	if err != nil {
		return netip.Addr{}, control.VTEPData{}, err
	}
	if addr.IsUnspecified() || d == (control.VTEPData{}) { // flannel writes these for a family that is missing
		return netip.Addr{}, control.VTEPData{}, nil
	}
	return addr, d, nil
}

// own returns the lease that n, the own Node, is to have in network, which wants a podCIDR
// of each of its families: published, with the addresses that overwrite annotations give. The one
// that they replace is then the source of the node's packets.
func (r reader) own(n *corev1.Node, network control.Network, published control.Lease) (control.Lease, error) {
	l, err := r.ownOf(n, network, published)
	if err != nil {
		return control.Lease{}, fmt.Errorf("node %s: %w", quote(n.Name), err)
	}
	return l, nil
}

// ownOf is own with errors that do not name the Node.
func (r reader) ownOf(n *corev1.Node, network control.Network, published control.Lease) (control.Lease, error) {
	l := published
	l.CreateRevision, l.ModRevision = revisions(n)
	var err error
	if l.Subnet, l.IPv6Subnet, err = r.subnets(n); err == nil {
		err = r.checkSubnets(n, network, l)
	}
	if err == nil {
		err = overwrite(n, r.names.overwrite, 32, &l.PublicIP, &l.Facts.Source)
	}
	if err == nil {
		err = overwrite(n, r.names.overwriteV6, 128, &l.PublicIPv6, &l.Facts.SourceV6)
	}
	return l, err
}

// fits returns why n, the own Node, can have no lease in network.
func (r reader) fits(n *corev1.Node, network control.Network) error {
	if _, err := r.own(n, network, control.Lease{}); err != nil {
		return fmt.Errorf("%w; no network config gives a Node other podCIDRs: put one into the ConfigMap that those of all Nodes fit", err)
	}
	return nil
}

// overwrite replaces a public IP, if there is one, by the value of an annotation, if that is set.
func overwrite(n *corev1.Node, name string, bits int, public, source *netip.Addr) error {
	text := n.Annotations[name]
	if text == "" || !public.IsValid() {
		return nil
	}
	a, err := control.ParseAddr("annotation "+name, text, bits)
	if err != nil {
		return err
	}
	if !source.IsValid() {
		*source = *public
	}
	if *public = a; *source == a {
		*source = netip.Addr{}
	}
	return nil
}

// checkSubnets refuses, in flannel's words, what does not lie in the network.
func (r reader) checkSubnets(n *corev1.Node, network control.Network, l control.Lease) error {
	for _, f := range []struct {
		name    string
		on      bool
		network netip.Prefix
		subnet  netip.Prefix
	}{
		{"IPv4", network.EnableIPv4, network.Network, l.Subnet},
		{"IPv6", network.EnableIPv6, network.IPv6Network, l.IPv6Subnet},
	} {
		switch {
		case !f.on:
		case !f.subnet.IsValid():
			return fmt.Errorf("pod cidr not assigned: the network has %s, podCIDRs are %q", f.name, n.Spec.PodCIDRs)
		case f.subnet.Bits() < f.network.Bits() || !f.network.Contains(f.subnet.Addr()):
			return fmt.Errorf("subnet %q specified in the flannel net config doesn't contain %q PodCIDR of the %q node", f.network, f.subnet, n.Name)
		}
	}
	return nil
}

// says reports whether n publishes what l does, in whatever words.
func (r reader) says(n *corev1.Node, l control.Lease) bool {
	var now control.Lease
	if n.Annotations[r.names.managed] != "true" || r.vteps(n, &now) != nil {
		return false
	}
	return now.BackendType == l.BackendType && now.PublicIP == l.PublicIP && now.Backend == l.Backend &&
		now.PublicIPv6 == l.PublicIPv6 && now.BackendV6 == l.BackendV6
}

// annotations returns the annotations that l consists of. Of those that names.written has, the others are to be removed.
func (r reader) annotations(l control.Lease) map[string]string {
	l = l.WithStandIns()
	a := map[string]string{r.names.managed: "true", r.names.backendType: l.BackendType}
	if l.PublicIP.IsValid() {
		a[r.names.publicIP], a[r.names.data] = l.PublicIP.String(), dataText(l.BackendType, l.Backend)
	}
	if l.PublicIPv6.IsValid() {
		a[r.names.publicIPv6], a[r.names.dataV6] = l.PublicIPv6.String(), dataText(l.BackendType, l.BackendV6)
	}
	if l.Facts.V > 0 {
		a[r.names.facts] = l.Facts.JSON()
	}
	return a
}

// dataText is flannel's text to the byte: a flanneld that is started on this node later
// cuts its MAC out of it by counting quotes.
func dataText(backendType string, d control.VTEPData) string {
	if backendType != control.BackendVXLAN {
		return "null"
	}
	return fmt.Sprintf(`{"VNI":%d,"VtepMAC":"%s"}`, d.VNI, d.MAC)
}
