package netconf

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/overlayd/overlayd/cmd/internal/fit"
	"github.com/overlayd/overlayd/control"
)

// effectiveConfig is a network config with every default filled in, in flannel's keys.
type effectiveConfig struct {
	EnableIPv4, EnableIPv6, EnableNFTables bool

	Network       string `json:",omitempty"`
	SubnetLen     int    `json:",omitempty"`
	SubnetMin     string `json:",omitempty"`
	SubnetMax     string `json:",omitempty"`
	IPv6Network   string `json:",omitempty"`
	IPv6SubnetLen int    `json:",omitempty"`
	IPv6SubnetMin string `json:",omitempty"`
	IPv6SubnetMax string `json:",omitempty"`

	Backend effectiveBackend
}

// effectiveBackend has no more than a type if that is not vxlan.
type effectiveBackend struct {
	Type string
	*vxlanBackend
}

type vxlanBackend struct {
	VNI                          uint32
	Port                         uint16
	MTU                          int // 0: that of the underlay interface
	GBP, Learning, DirectRouting bool
}

// effective fills in what n leaves out, so that its JSON shows every value the daemon would use.
func effective(n control.Network) effectiveConfig {
	b := n.Backend
	c := effectiveConfig{EnableIPv4: n.EnableIPv4, EnableIPv6: n.EnableIPv6, EnableNFTables: n.EnableNFTables, Backend: effectiveBackend{Type: b.Type}}
	if b.IsVXLAN() {
		c.Backend.vxlanBackend = &vxlanBackend{b.VNI, b.Port, b.MTU, b.GBP, b.Learning, b.DirectRouting}
	}
	if n.EnableIPv4 {
		c.Network, c.SubnetLen, c.SubnetMin, c.SubnetMax = n.Network.String(), n.SubnetLen, n.SubnetMin.String(), n.SubnetMax.String()
	}
	if n.EnableIPv6 {
		c.IPv6Network, c.IPv6SubnetLen = n.IPv6Network.String(), n.IPv6SubnetLen
		c.IPv6SubnetMin, c.IPv6SubnetMax = n.IPv6SubnetMin.String(), n.IPv6SubnetMax.String()
	}
	return c
}

// Print prints a config as a table, or as JSON with the dataplanes that can carry it, and what
// this host would do unless forecast is nil. A backend that needs no dataplane has none.
func Print(w io.Writer, n control.Network, forecast *fit.Forecast, output string) error {
	c := effective(n)
	dataplanes, err := fit.Anywhere(n)
	if err != nil {
		return err
	}
	if output == "json" {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(struct {
			effectiveConfig
			Dataplanes []fit.Mode    `json:",omitempty"`
			Host       *fit.Forecast `json:",omitempty"`
		}{c, dataplanes, forecast})
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(key string, value any) { fmt.Fprintf(t, "%s\t%v\n", key, value) }
	row("EnableIPv4", c.EnableIPv4)
	row("EnableIPv6", c.EnableIPv6)
	row("EnableNFTables", c.EnableNFTables)
	if n.EnableIPv4 {
		row("Network", c.Network)
		row("SubnetLen", c.SubnetLen)
		row("SubnetMin", c.SubnetMin)
		row("SubnetMax", c.SubnetMax)
	}
	if n.EnableIPv6 {
		row("IPv6Network", c.IPv6Network)
		row("IPv6SubnetLen", c.IPv6SubnetLen)
		row("IPv6SubnetMin", c.IPv6SubnetMin)
		row("IPv6SubnetMax", c.IPv6SubnetMax)
	}
	row("Backend.Type", c.Backend.Type)
	if b := c.Backend.vxlanBackend; b != nil {
		row("Backend.VNI", b.VNI)
		row("Backend.Port", b.Port)
		row("Backend.MTU", orUnderlays(b.MTU))
		row("Backend.GBP", b.GBP)
		row("Backend.Learning", b.Learning)
		row("Backend.DirectRouting", b.DirectRouting)
	}
	if n.Backend.IsVXLAN() {
		row("dataplanes", joined(dataplanes))
	} else {
		row("dataplanes", "none needed")
	}
	if forecast != nil {
		row("interface", forecast.Interface)
		row("public IPs", joined(forecast.PublicIPs))
		for _, d := range forecast.Dataplanes {
			row(string(d.Dataplane), d)
		}
		for _, need := range forecast.Underlay {
			row("of the underlay", need)
		}
	}
	if n.Backend.Missing {
		row("warning", `without a Backend flanneld runs udp, which cannot reach overlayd: write "Backend": {"Type": "vxlan"}`)
	}
	return t.Flush()
}

// joined is a list as text.
func joined[T any](list []T) string {
	var all []string
	for _, v := range list {
		all = append(all, fmt.Sprint(v))
	}
	return strings.Join(all, ", ")
}

// orUnderlays is an MTU as text; 0 means that the daemon takes the interface's.
func orUnderlays(mtu int) string {
	if mtu == 0 {
		return "that of the underlay interface"
	}
	return fmt.Sprint(mtu)
}
