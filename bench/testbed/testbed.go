package testbed

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
)

// Underlay is the prefix of the hosts' addresses on the underlay (RFC 5737).
const Underlay = "192.0.2.0/24"

// Testbed is hosts on one underlay, a bridge in a namespace of its own.
type Testbed struct {
	Dir   string // of the hosts' files
	Hosts []*Host

	prefix Prefix
	lan    *Namespace
}

// New makes an underlay without hosts. Everything that outlives a call has the
// prefix in its name. If New fails, Close still takes down what was made.
func New(prefix Prefix) (t *Testbed, err error) {
	t = &Testbed{prefix: prefix}
	if t.Dir, err = os.MkdirTemp("", string(prefix)); err != nil {
		return t, fmt.Errorf("make directory for the hosts: %w", err)
	}
	if t.lan, err = NewNamespace(string(prefix) + "lan"); err != nil {
		return t, err
	}
	return t, t.lan.AddBridge()
}

// AddHost makes the next host, with the address 192.0.2.<10 + number>, and plugs it
// into the underlay.
func (t *Testbed) AddHost() (*Host, error) {
	num := len(t.Hosts) + 1
	name := fmt.Sprintf("host%d", num)
	h := &Host{
		Name: name, Dir: filepath.Join(t.Dir, name), Addr: netip.AddrFrom4([4]byte{192, 0, 2, byte(10 + num)}),
		num: num, prefix: t.prefix,
	}
	t.Hosts = append(t.Hosts, h)
	if err := t.join(h); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return h, nil
}

func (t *Testbed) join(h *Host) (err error) {
	if err := os.Mkdir(h.Dir, 0o755); err != nil {
		return err
	}
	if h.NS, err = NewNamespace(string(t.prefix) + h.Name); err != nil {
		return err
	}
	port := fmt.Sprintf("port%d", h.num)
	if err := t.lan.AddVeth(port, h.NS, underlayLink, 0); err != nil {
		return err
	}
	if err := t.lan.AddPort(port); err != nil {
		return err
	}
	return h.NS.AddAddr(underlayLink, netip.PrefixFrom(h.Addr, netip.MustParsePrefix(Underlay).Bits()))
}

// Close ends the daemons, the last host's first, and removes everything that the
// testbed made. It goes on after an error.
func (t *Testbed) Close() error {
	var errs []error
	for i := len(t.Hosts) - 1; i >= 0; i-- {
		errs = append(errs, t.Hosts[i].stop())
	}
	namespaces := []*Namespace{t.lan}
	for _, h := range t.Hosts {
		namespaces = append(namespaces, h.NS, h.Pod)
	}
	for _, n := range namespaces {
		if n != nil {
			errs = append(errs, n.Close())
		}
	}
	_, err := t.prefix.Remove() // finds them all, and what an unfinished step left
	return errors.Join(append(errs, err)...)
}
