package control

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/overlayd/overlayd/encap"
)

// maxConfig bounds the network config in bytes: a real one has a few hundred.
const maxConfig = 64 << 10

// maxDetailed bounds the text of which all mistakes are told, in bytes: each key is read again for that.
const maxDetailed = 4 << 10

// maxMistakes bounds how many keys of an object an error is about: one key can be there in many spellings.
const maxMistakes = 16

// NetworkError says that there is a network config and that it is not valid, as
// against no config (ErrNoNetwork) and no answer (any other error).
type NetworkError struct {
	Err error // names the field and the value; of several mistakes it has Unwrap() []error
}

// Error implements error.
func (e *NetworkError) Error() string {
	return "network config: " + strings.ReplaceAll(e.Err.Error(), "\n", "; ")
}

// All returns each mistake.
func (e *NetworkError) All() []error { return flatten(e.Err) }

// flatten returns the errors that err joins, at any depth.
func flatten(err error) (all []error) {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	for _, e := range joined.Unwrap() {
		all = append(all, flatten(e)...)
	}
	return all
}

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
	err := unmarshal("", text, &in)
	b, bad := parseBackend(in.Backend)
	if err != nil { // what could not be read is not missing
		return Network{}, errors.Join(err, bad)
	}
	n := Network{EnableIPv4: in.EnableIPv4, EnableIPv6: in.EnableIPv6, EnableNFTables: in.EnableNFTables}
	if !n.EnableIPv4 && !n.EnableIPv6 {
		err = errors.New("EnableIPv4 and EnableIPv6 are both false, want at least one")
	}
	if n.EnableIPv4 {
		rules := ipv4Rules()
		rules.assigned = assigned
		r, bad := rules.check(in.Network, in.SubnetLen, in.SubnetMin, in.SubnetMax)
		err = errors.Join(err, bad)
		n.Network, n.SubnetLen, n.SubnetMin, n.SubnetMax = r.network, r.length, r.min, r.max
	}
	if n.EnableIPv6 {
		rules := ipv6Rules()
		rules.assigned = assigned
		r, bad := rules.check(in.IPv6Network, in.IPv6SubnetLen, in.IPv6SubnetMin, in.IPv6SubnetMax)
		err = errors.Join(err, bad)
		n.IPv6Network, n.IPv6SubnetLen, n.IPv6SubnetMin, n.IPv6SubnetMax = r.network, r.length, r.min, r.max
	}
	if err := errors.Join(err, bad); err != nil {
		return Network{}, err
	}
	n.Backend = b.withNumber(n)
	return n, nil
}

// parseBackend reads the Backend object; an absent one is vxlan with defaults. host-gw and alloc have no
// settings. The settings of a type that does not exist are looked at as those of vxlan.
func parseBackend(text json.RawMessage) (Backend, error) {
	var kind struct{ Type string }
	var bad error
	if len(text) > 0 {
		bad = unmarshal("Backend.", text, &kind)
	}
	b := Backend{Type: cmp.Or(strings.ToLower(kind.Type), BackendVXLAN), Missing: len(text) == 0}
	switch err := checkBackendType(b.Type); {
	case err != nil:
		bad = errors.Join(bad, err)
	case !b.IsVXLAN():
		return b, bad
	}
	in, errs := vxlanJSON{VNI: 1}, []error{bad}
	if text = bytes.TrimSpace(text); len(text) > 0 && (bad == nil || text[0] == '{') { // else it was said what it is
		errs = append(errs, unmarshal("Backend.", text, &in))
	}
	if errs = append(errs, in.check()...); errors.Join(errs...) != nil {
		return Backend{}, errors.Join(errs...)
	}
	if in.Port == 0 {
		in.Port = encap.DefaultPort
	}
	b.VNI, b.Port, b.MTU = uint32(in.VNI), uint16(in.Port), int(in.MTU)
	b.GBP, b.Learning, b.DirectRouting = in.GBP, in.Learning, in.DirectRouting
	return b, nil
}

// vxlanJSON are the settings of the backend vxlan as flannel writes them.
type vxlanJSON struct {
	VNI, Port, MTU               int64
	GBP, Learning, DirectRouting bool
}

// check returns what is out of range.
func (in *vxlanJSON) check() (errs []error) {
	if in.VNI < 0 || in.VNI > encap.MaxVNI {
		errs = append(errs, fmt.Errorf("Backend.VNI %d is not in 0..%d", in.VNI, encap.MaxVNI))
	}
	switch {
	case in.Port > 65535 && in.Port%65536 != 0:
		errs = append(errs, fmt.Errorf("Backend.Port %d is not in 1..65535: write %d, which is what flanneld takes it for", in.Port, in.Port%65536))
	case in.Port < 0 || in.Port > 65535:
		errs = append(errs, fmt.Errorf("Backend.Port %d is not in 1..65535 (0: %d)", in.Port, encap.DefaultPort))
	}
	if in.MTU != 0 && (in.MTU < minMTU || in.MTU > 65535) {
		errs = append(errs, fmt.Errorf("Backend.MTU %d is not in %d..65535 (0: that of the underlay interface)", in.MTU, minMTU))
	}
	return errs
}

const (
	minMTU = 68 + 50 // RFC 791 section 3.2 minimum, plus the encapsulation over IPv4
)

// unmarshal is json.Unmarshal with errors that name the key (below path), what
// was wanted and what came, in a bounded length. It joins those of all keys.
func unmarshal(path string, text []byte, v any) error {
	err := json.Unmarshal(text, v)
	var te *json.UnmarshalTypeError
	var parts map[string]json.RawMessage
	if errors.As(err, &te) && len(text) <= maxDetailed && json.Unmarshal(text, &parts) == nil && len(parts) > 1 { // Go tells of the first key alone
		var errs []error
		for _, key := range slices.Sorted(maps.Keys(parts)) {
			one, err := json.Marshal(map[string]json.RawMessage{key: parts[key]})
			if err = errors.Join(err, unmarshal(path, one, v)); err != nil && len(errs) < maxMistakes {
				errs = append(errs, err)
			}
		}
		return errors.Join(errs...)
	}
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
