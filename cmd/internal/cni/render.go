package cni

import (
	"encoding/json"
	"maps"

	"github.com/containernetworking/cni/pkg/types"
)

// render returns the config of the delegate for a host of which subnet.env says e. What the key delegate says wins, but for
// the addresses. Its "cniVersion" is the caller's yet.
func (c *config) render(e env) (object, error) {
	if err := c.checkDelegate(); err != nil {
		return nil, err
	}
	d := object{}
	maps.Copy(d, c.Delegate)
	if len(c.RuntimeConfig) > 0 && string(c.RuntimeConfig) != "null" {
		d["runtimeConfig"] = c.RuntimeConfig
	}
	d.lacks("type", defaultDelegate)
	d.lacks("ipMasq", !e.ipMasq) // one of the two does it
	d.lacks("mtu", e.mtu)
	if d.text("type") == defaultDelegate {
		d.lacks("isGateway", true)
	}
	ipam, err := c.ipam(e)
	if err != nil {
		return nil, err
	}
	d.set("ipam", ipam)
	d.set("name", c.Name)
	d.set("cniVersion", c.CNIVersion)
	return d, nil
}

// ipam returns the config of the plugin that chooses addresses: a range of each family, and the way to all other pods.
func (c *config) ipam(e env) (object, error) {
	o := object{}
	maps.Copy(o, c.IPAM)
	o.lacks("type", defaultIPAM)
	var ranges [][]map[string]string
	for _, subnet := range e.subnets {
		ranges = append(ranges, []map[string]string{{"subnet": subnet.String()}})
	}
	o.set("ranges", ranges)
	var routes []json.RawMessage
	if raw, ok := c.IPAM["routes"]; ok {
		if err := json.Unmarshal(raw, &routes); err != nil {
			return nil, invalid("ipam.routes: %v", err)
		}
		if err := json.Unmarshal(raw, new([]types.Route)); err != nil {
			return nil, invalid("ipam.routes: %v", err)
		}
	}
	for _, network := range e.networks {
		routes = append(routes, encode(map[string]string{"dst": network.String()}))
	}
	o.set("routes", routes)
	return o, nil
}

// set sets a key.
func (o object) set(key string, value any) { o[key] = encode(value) }

// encode returns the JSON of a value. Every value of this package has one.
func encode(value any) json.RawMessage {
	text, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	return text
}

// lacks sets a key that is not there.
func (o object) lacks(key string, value any) {
	if _, ok := o[key]; !ok {
		o.set(key, value)
	}
}

// text returns a key's string, "" if it has none.
func (o object) text(key string) (s string) {
	_ = json.Unmarshal(o[key], &s) // another kind of value is not a string
	return s
}
