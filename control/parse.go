package control

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/overlayd/overlayd/encap"
)

// maxConfig bounds the network config in bytes: a real one has a few hundred.
const maxConfig = 64 << 10

// NetworkError says that there is a network config and that it is not valid, as
// against no config (ErrNoNetwork) and no answer (any other error).
type NetworkError struct {
	Err error // names the field and the value
}

// Error implements error.
func (e *NetworkError) Error() string { return "network config: " + e.Err.Error() }

// Unwrap lets errors.Is and errors.As see the cause.
func (e *NetworkError) Unwrap() error { return e.Err }

// networkJSON is the config as flannel writes it. encoding/json gives flannel's
// own semantics: keys in any case, unknown ones ignored, the last of two counts.
type networkJSON struct {
	EnableIPv4     bool
	EnableIPv6     bool
	EnableNFTables bool
	Network        string
	SubnetLen      uint
	SubnetMin      string
	SubnetMax      string
	IPv6Network    string
	IPv6SubnetLen  uint
	IPv6SubnetMin  string
	IPv6SubnetMax  string
	Backend        json.RawMessage
}

// ParseNetwork reads the JSON of `<prefix>/config`, fills in flannel's defaults
// and checks all of it (flannel v0.28.9 pkg/subnet/config.go; the messages begin
// with flannel's text). Beyond flannel it checks the ranges of VNI, Port and MTU
// and takes a missing Backend or Type for vxlan. Every error is a *NetworkError.
//
// An IPv6 network is checked whether or not the caller can carry it: see
// Network.EnableIPv6.
func ParseNetwork(text []byte) (Network, error) {
	n, err := parseNetwork(text, false)
	if err != nil {
		return Network{}, &NetworkError{Err: err}
	}
	return n, nil
}

// parseNetwork reads a config; assigned: see familyRules.
func parseNetwork(text []byte, assigned bool) (Network, error) {
	if len(text) > maxConfig {
		return Network{}, fmt.Errorf("%d bytes, want at most %d", len(text), maxConfig)
	}
	in := networkJSON{EnableIPv4: true}
	if err := unmarshal("", text, &in); err != nil {
		return Network{}, err
	}
	n := Network{EnableIPv4: in.EnableIPv4, EnableIPv6: in.EnableIPv6, EnableNFTables: in.EnableNFTables}
	if !n.EnableIPv4 && !n.EnableIPv6 {
		return Network{}, errors.New("EnableIPv4 and EnableIPv6 are both false, want at least one")
	}
	if n.EnableIPv4 {
		rules := ipv4Rules()
		rules.assigned = assigned
		r, err := rules.check(in.Network, in.SubnetLen, in.SubnetMin, in.SubnetMax)
		if err != nil {
			return Network{}, err
		}
		n.Network, n.SubnetLen, n.SubnetMin, n.SubnetMax = r.network, r.length, r.min, r.max
	}
	if n.EnableIPv6 {
		rules := ipv6Rules()
		rules.assigned = assigned
		r, err := rules.check(in.IPv6Network, in.IPv6SubnetLen, in.IPv6SubnetMin, in.IPv6SubnetMax)
		if err != nil {
			return Network{}, err
		}
		n.IPv6Network, n.IPv6SubnetLen, n.IPv6SubnetMin, n.IPv6SubnetMax = r.network, r.length, r.min, r.max
	}
	b, err := parseBackend(in.Backend)
	if err != nil {
		return Network{}, err
	}
	n.Backend = b.withNumber(n)
	return n, nil
}

// parseBackend reads the Backend object; an absent one is vxlan with defaults. host-gw and alloc have no
// settings.
func parseBackend(text json.RawMessage) (Backend, error) {
	var kind struct{ Type string }
	if len(text) > 0 {
		if err := unmarshal("Backend.", text, &kind); err != nil {
			return Backend{}, err
		}
	}
	b := Backend{Type: cmp.Or(strings.ToLower(kind.Type), BackendVXLAN), Missing: len(text) == 0}
	if err := checkBackendType(b.Type); err != nil || !b.IsVXLAN() {
		return b, err
	}
	in := struct {
		VNI, Port, MTU               int64
		GBP, Learning, DirectRouting bool
	}{VNI: 1}
	if len(text) > 0 {
		if err := unmarshal("Backend.", text, &in); err != nil {
			return Backend{}, err
		}
	}
	switch {
	case in.VNI < 0 || in.VNI > encap.MaxVNI:
		return Backend{}, fmt.Errorf("Backend.VNI %d is not in 0..%d", in.VNI, encap.MaxVNI)
	case in.Port > 65535 && in.Port%65536 != 0:
		return Backend{}, fmt.Errorf("Backend.Port %d is not in 1..65535: write %d, which is what flanneld takes it for", in.Port, in.Port%65536)
	case in.Port < 0 || in.Port > 65535:
		return Backend{}, fmt.Errorf("Backend.Port %d is not in 1..65535 (0: %d)", in.Port, encap.DefaultPort)
	case in.MTU != 0 && (in.MTU < minMTU || in.MTU > 65535):
		return Backend{}, fmt.Errorf("Backend.MTU %d is not in %d..65535 (0: that of the underlay interface)", in.MTU, minMTU)
	}
	if in.Port == 0 {
		in.Port = encap.DefaultPort
	}
	b.VNI, b.Port, b.MTU = uint32(in.VNI), uint16(in.Port), int(in.MTU)
	b.GBP, b.Learning, b.DirectRouting = in.GBP, in.Learning, in.DirectRouting
	return b, nil
}

const (
	minMTU = 68 + 50 // RFC 791 section 3.2 minimum, plus the encapsulation over IPv4
)

// unmarshal is json.Unmarshal with errors that name the key (below path), what
// was wanted and what came, in a bounded length.
func unmarshal(path string, text []byte, v any) error {
	err := json.Unmarshal(text, v)
	var te *json.UnmarshalTypeError
	switch {
	case errors.As(err, &te):
		name := path + te.Field
		if te.Field == "" {
			name = strings.TrimSuffix(path, ".")
		}
		if name == "" {
			name = "top level"
		}
		return fmt.Errorf("%.80q: want %s, got JSON %.40s", name, jsonName(te.Type.Kind().String()), te.Value)
	case err != nil:
		return fmt.Errorf("read JSON: %.120w", err)
	}
	return nil
}

// jsonName translates the name of a Go kind.
func jsonName(kind string) string {
	switch {
	case kind == "struct":
		return "an object"
	case kind == "string":
		return "a string"
	case kind == "bool":
		return "true or false"
	case strings.HasPrefix(kind, "uint"):
		return "a whole number from 0"
	}
	return "a whole number"
}

// ParseAddr reads an address of the family with bits-bit addresses, without a zone and not mapped
// into IPv6. An error begins with field and has the value.
func ParseAddr(field, s string, bits int) (netip.Addr, error) {
	a, err := netip.ParseAddr(s)
	if err != nil || a.BitLen() != bits || a.Is4In6() || a.Zone() != "" {
		return netip.Addr{}, fmt.Errorf("%s %.40q is not an %s address", field, s, familyName(bits))
	}
	return a, nil
}

func familyName(bits int) string {
	if bits == 32 {
		return "IPv4"
	}
	return "IPv6"
}
