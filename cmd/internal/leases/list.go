// Package leases does the work of `overlayd lease`: it finds the etcd to ask, reads reservations as people write
// them, and prints leases for people and for programs.
package leases

import (
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/etcd"
)

// Print prints a table of the leases and reservations, and below it one of the invalid entries.
func Print(w io.Writer, entries []etcd.Entry) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "SUBNET\tPUBLIC-IP\tBACKEND\tVNI\tVTEP-MAC\tEXPIRES-IN\tSTATE\tALIVE\tNODE")
	bad := 0
	for _, e := range entries {
		if e.Why != "" {
			bad++
		}
		if e.Err != nil {
			continue
		}
		l := e.Lease
		var vnis, macs []string
		for _, d := range []control.VTEPData{l.Backend, l.BackendV6} {
			if d == (control.VTEPData{}) {
				continue
			}
			if vni := strconv.Itoa(int(d.VNI)); len(vnis) == 0 || vnis[0] != vni {
				vnis = append(vnis, vni)
			}
			macs = append(macs, d.MAC.String())
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", Subnets(l), PublicIPs(l), orDash(Shown(l.BackendType)),
			orDash(strings.Join(vnis, ",")), orDash(strings.Join(macs, ",")), expiryText(e), e.State, e.Alive, orDash(e.Node))
	}
	if err := t.Flush(); err != nil || bad == 0 {
		return err
	}
	fmt.Fprintln(t, "\nNOT USED\tSTATE\tEXPIRES-IN\tREASON")
	for _, e := range entries {
		if e.Why != "" {
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", Shown(e.Key), e.State, expiryText(e), Shown(e.Why))
		}
	}
	return t.Flush()
}

// expiryText says how long an entry lasts. Only etcd knows that, not the entry itself.
func expiryText(e etcd.Entry) string {
	switch {
	case e.Reserved && e.Err != nil:
		return "never"
	case e.Reserved:
		return "reserved"
	}
	return e.TTL.String()
}

// orDash keeps the columns of a table apart if a value is missing.
func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// Shown makes text of the store safe for a terminal: it escapes what cannot be printed.
func Shown(s string) string {
	quoted := strconv.Quote(s)
	return strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`)
}

// Subnets is the subnets of a lease as `lease reserve` takes them.
func Subnets(l control.Lease) string {
	return join(prefixText(l.Subnet), prefixText(l.IPv6Subnet))
}

// PublicIPs is the public addresses of a lease.
func PublicIPs(l control.Lease) string {
	return orDash(join(addrText(l.PublicIP), addrText(l.PublicIPv6)))
}

// join joins those texts that are not empty.
func join(texts ...string) string {
	return strings.Join(slices.DeleteFunc(texts, func(s string) bool { return s == "" }), ",")
}

// Row is an entry in JSON, with flannel's names if it has any.
type Row struct {
	Key           string
	Subnet        string `json:",omitempty"`
	IPv6Subnet    string `json:",omitempty"`
	PublicIP      string `json:",omitempty"`
	PublicIPv6    string `json:",omitempty"`
	BackendType   string `json:",omitempty"`
	BackendData   *VTEP  `json:",omitempty"`
	BackendV6Data *VTEP  `json:",omitempty"`
	Reserved      bool
	TTLSeconds    int64 // until it expires unless it is renewed; 0 for a reservation
	State         string
	Why           string `json:",omitempty"` // State is refused or unreadable
	Alive         string // its node gives signs of life: yes, no or unknown
	Node          string `json:",omitempty"` // its name
	Error         string `json:",omitempty"` // why it is not a lease
}

// VTEP is a node's tunnel end in JSON.
type VTEP struct {
	VNI     uint32
	VtepMAC string
}

// PrintJSON prints all entries in one list. An empty list is [], not null.
func PrintJSON(w io.Writer, entries []etcd.Entry) error {
	rows := make([]Row, 0, len(entries))
	for _, e := range entries {
		row := Row{Key: e.Key, Reserved: e.Reserved, TTLSeconds: int64(e.TTL.Seconds()),
			State: string(e.State), Why: e.Why, Alive: e.Alive, Node: e.Node}
		if e.Err != nil {
			row.Error = e.Err.Error()
			rows = append(rows, row)
			continue
		}
		l := e.Lease
		row.Subnet, row.IPv6Subnet = prefixText(l.Subnet), prefixText(l.IPv6Subnet)
		row.PublicIP, row.PublicIPv6, row.BackendType = addrText(l.PublicIP), addrText(l.PublicIPv6), l.BackendType
		row.BackendData, row.BackendV6Data = vtepRow(l.Backend), vtepRow(l.BackendV6)
		rows = append(rows, row)
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false) // keys contain an ampersand
	return e.Encode(rows)
}

// vtepRow is a VTEP in JSON; nil, which is left out, if the lease has none of the family.
func vtepRow(d control.VTEPData) *VTEP {
	if d == (control.VTEPData{}) {
		return nil
	}
	return &VTEP{d.VNI, d.MAC.String()}
}

// prefixText is a prefix as text, empty if it is not valid.
func prefixText(p netip.Prefix) string {
	if !p.IsValid() {
		return ""
	}
	return p.String()
}

// addrText is an address as text, empty if it is not valid.
func addrText(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}
