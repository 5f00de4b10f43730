package control

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strconv"

	"github.com/overlayd/overlayd/encap"
)

const (
	maxValue       = 64 << 10 // bounds a lease's value in bytes: a real one has below 300
	maxBackendType = 256      // in bytes: it is kept
)

// leaseJSON and vtepJSON are a lease's value with flannel's field order.
type leaseJSON struct {
	PublicIP      string
	PublicIPv6    *string
	BackendType   string          `json:",omitempty"`
	BackendData   json.RawMessage `json:",omitempty"`
	BackendV6Data json.RawMessage `json:",omitempty"`
}

type vtepJSON struct {
	VNI     *int64 // 0 is one, too
	VtepMAC string
}

// Value returns the lease as flannel stores it, byte for byte (flannel v0.28.9
// pkg/lease): no spaces, PublicIP always present ("0.0.0.0" without an IPv4 VTEP),
// PublicIPv6 null or a string, the data of a family that has a VTEP or a stand-in
// for one (WithStandIns) only.
func (l Lease) Value() []byte {
	l = l.WithStandIns()
	ip := netip.IPv4Unspecified()
	if l.PublicIP.IsValid() {
		ip = l.PublicIP
	}
	b := append(make([]byte, 0, 256), `{"PublicIP":"`...)
	b = append(ip.AppendTo(b), `","PublicIPv6":`...)
	if l.PublicIPv6.IsValid() {
		b = append(l.PublicIPv6.AppendTo(append(b, '"')), '"')
	} else {
		b = append(b, "null"...)
	}
	if l.BackendType != "" {
		quoted, _ := json.Marshal(l.BackendType) // a string cannot fail
		b = append(append(b, `,"BackendType":`...), quoted...)
	}
	if l.BackendType == BackendVXLAN {
		b = l.Backend.append(b, "BackendData")
		b = l.BackendV6.append(b, "BackendV6Data")
	}
	return append(b, '}')
}

func (d VTEPData) append(b []byte, name string) []byte {
	if d == (VTEPData{}) {
		return b
	}
	return fmt.Appendf(b, `,"%s":{"VNI":%d,"VtepMAC":"%s"}`, name, d.VNI, d.MAC)
}

// ParseLease reads an entry of the store. It checks that each field is what it
// says (an address, a VNI of 24 bits, a six-byte MAC), not whether the lease can
// be used: that is the RIB's part. A vxlan lease needs the data of one VTEP at least,
// of either family whatever its subnets are; the backend data of another BackendType is
// not looked at. Unknown fields are ignored, and PublicIP "0.0.0.0" reads as no
// address; a stand-in reads as no VTEP (WithoutStandIns). Errors name the field and the value;
// their Reason is bad_key or bad_value.
func ParseLease(key string, value []byte) (Lease, error) {
	v4, v6, err := ParseKey(key)
	if err != nil {
		return Lease{}, WithReason("bad_key", err)
	}
	l, err := parseValue(value)
	if err != nil {
		return Lease{}, WithReason("bad_value", err)
	}
	l.Subnet, l.IPv6Subnet = v4, v6
	return l, nil
}

// parseValue reads a lease without its subnets.
func parseValue(value []byte) (l Lease, err error) {
	if len(value) > maxValue {
		return Lease{}, fmt.Errorf("value has more than %d bytes", maxValue)
	}
	if l, ok := parseUsual(value); ok {
		return l, nil
	}
	return parseJSON(value)
}

// parseUsual reads a value that is, byte for byte, as Lease.Value writes the one of an IPv4 VTEP: with as many of them as a list has, JSON
// would be most of the work. What differs in any way is left to parseJSON, which reads this form alike.
func parseUsual(value []byte) (l Lease, ok bool) {
	rest, ok := bytes.CutPrefix(value, []byte(`{"PublicIP":"`))
	ip, rest, ok1 := bytes.Cut(rest, []byte(`","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":`))
	number, rest, ok2 := bytes.Cut(rest, []byte(`,"VtepMAC":"`))
	text, end, ok3 := bytes.Cut(rest, []byte(`"}}`))
	if !ok || !ok1 || !ok2 || !ok3 || len(end) > 0 || len(number) > 1 && number[0] == '0' {
		return Lease{}, false
	}
	public, err := ParseAddr("PublicIP", string(ip), 32)
	vni, err1 := strconv.ParseUint(string(number), 10, 32)
	mac, err2 := encap.ParseMAC(string(text))
	if err != nil || err1 != nil || err2 != nil || vni > encap.MaxVNI || public.IsUnspecified() {
		return Lease{}, false
	}
	l = Lease{PublicIP: public, BackendType: BackendVXLAN, Backend: VTEPData{VNI: uint32(vni), MAC: mac}}.WithoutStandIns()
	return l, l.Backend != VTEPData{}
}

// parseJSON reads a lease without its subnets, whatever its spelling.
func parseJSON(value []byte) (l Lease, err error) {
	var in leaseJSON
	if err := unmarshal("", value, &in); err != nil {
		return Lease{}, err
	}
	switch l.BackendType = in.BackendType; {
	case l.BackendType == BackendVXLAN:
		l.BackendType = BackendVXLAN // one string for all leases
	case len(l.BackendType) > maxBackendType:
		return Lease{}, fmt.Errorf("BackendType has %d bytes, want at most %d", len(l.BackendType), maxBackendType)
	}
	if l.PublicIP, err = ParseAddr("PublicIP", in.PublicIP, 32); err != nil {
		return Lease{}, err
	}
	if l.PublicIP.IsUnspecified() {
		l.PublicIP = netip.Addr{}
	}
	if in.PublicIPv6 != nil {
		if l.PublicIPv6, err = ParseAddr("PublicIPv6", *in.PublicIPv6, 128); err != nil {
			return Lease{}, err
		}
	}
	if l.BackendType != BackendVXLAN {
		return l, nil
	}
	if l.Backend, err = parseVTEP("BackendData", in.BackendData); err != nil {
		return Lease{}, err
	}
	if l.BackendV6, err = parseVTEP("BackendV6Data", in.BackendV6Data); err != nil {
		return Lease{}, err
	}
	if l = l.WithoutStandIns(); l.Backend == (VTEPData{}) && l.BackendV6 == (VTEPData{}) {
		return Lease{}, errors.New("BackendData and BackendV6Data are missing, want one of them at least")
	}
	return l, nil
}

// parseVTEP reads the backend data of one family; absent means that there is no VTEP.
func parseVTEP(field string, text json.RawMessage) (VTEPData, error) {
	if len(text) == 0 || string(text) == "null" {
		return VTEPData{}, nil
	}
	var in vtepJSON
	if err := unmarshal(field+".", text, &in); err != nil {
		return VTEPData{}, err
	}
	switch {
	case in.VNI == nil:
		return VTEPData{}, fmt.Errorf("%s.VNI is missing", field)
	case *in.VNI < 0 || *in.VNI > encap.MaxVNI:
		return VTEPData{}, fmt.Errorf("%s.VNI %d is not in 0..%d", field, *in.VNI, encap.MaxVNI)
	}
	mac, err := encap.ParseMAC(in.VtepMAC)
	if err != nil {
		return VTEPData{}, fmt.Errorf("%s.VtepMAC: %w", field, err)
	}
	return VTEPData{VNI: uint32(*in.VNI), MAC: mac}, nil
}
