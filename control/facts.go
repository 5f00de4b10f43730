package control

import (
	"encoding/json"
	"fmt"
	"net/netip"
)

// FactsVersion is the version of the facts that this program publishes. A node that publishes
// any knows what a stand-in is, and reaches a node of one underlay family by that one.
const FactsVersion = 1

// NodeFacts is what an overlayd says of its node beside the lease, in the store's own
// place for it. It is as little trusted as a lease.
type NodeFacts struct {
	V        int        // FactsVersion of the node; 0: it has published no facts, for one because it runs a flanneld
	Source   netip.Addr // outer IPv4 source of the node's packets, if it is not its PublicIP
	SourceV6 netip.Addr // the same for IPv6
	// Userspace says that the node forwards by itself, and so receives by UDP sockets.
	Userspace bool
	// Name is the node's, for people, and safe to print; empty: it has told none.
	Name string
}

// nodeNameBytes bounds a node's name.
const nodeNameBytes = 64

// factsJSON are the facts in a node's record, among other fields. Unknown ones are ignored.
type factsJSON struct {
	V    int             `json:"v"`
	Src4 string          `json:"src4,omitempty"`
	Src6 string          `json:"src6,omitempty"`
	User bool            `json:"userspace,omitempty"`
	Name json.RawMessage `json:"name,omitempty"` // what is not a string is no name
}

// Facts returns what the node says of itself.
func (n Node) Facts() NodeFacts {
	return NodeFacts{V: FactsVersion, Source: n.Source, SourceV6: n.SourceV6, Userspace: n.Userspace}
}

// JSON returns the facts as an object of their own: {"v":1,"src4":"10.0.0.5"}.
func (f NodeFacts) JSON() string {
	out := factsJSON{V: f.V, User: f.Userspace}
	if f.Source.IsValid() {
		out.Src4 = f.Source.String()
	}
	if f.SourceV6.IsValid() {
		out.Src6 = f.SourceV6.String()
	}
	if f.Name != "" {
		out.Name, _ = json.Marshal(f.Name) // neither this
	}
	text, _ := json.Marshal(out) // nor numbers, strings and booleans can fail
	return string(text)
}

// ParseNodeFacts reads the facts of a node's record. An error names the field and the value.
func ParseNodeFacts(record []byte) (f NodeFacts, err error) {
	if len(record) > maxValue {
		return NodeFacts{}, fmt.Errorf("record has more than %d bytes", maxValue)
	}
	var in factsJSON
	if err := unmarshal("", record, &in); err != nil {
		return NodeFacts{}, err
	}
	f.V, f.Userspace = max(in.V, 0), in.User
	if in.Src4 != "" {
		if f.Source, err = ParseAddr("src4", in.Src4, 32); err != nil {
			return NodeFacts{}, err
		}
	}
	if in.Src6 != "" {
		if f.SourceV6, err = ParseAddr("src6", in.Src6, 128); err != nil {
			return NodeFacts{}, err
		}
	}
	if name := ""; json.Unmarshal(in.Name, &name) == nil {
		f = f.WithName(name)
	}
	return f, nil
}

// WithName returns f with the name of its node.
func (f NodeFacts) WithName(name string) NodeFacts {
	f.Name = Printable(name, nodeNameBytes)
	return f
}

// source returns the outer source of the node's packets in one family, if it is not the published address.
func (f NodeFacts) source(ipv6 bool) netip.Addr {
	if ipv6 {
		return f.SourceV6
	}
	return f.Source
}
