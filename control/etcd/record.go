package etcd

import (
	"encoding/json"
	"net/netip"
	"time"

	"github.com/overlayd/overlayd/control"
)

// nodeJSON is the value of a node's record. ID and Name are all that overlayd before v 1 wrote; every
// version reads records of every other, and keeps the fields of its own record that it does not know.
type nodeJSON struct {
	ID      string     `json:"id"`
	Name    string     `json:"name"`
	Boot    string     `json:"boot,omitempty"`
	NetNS   uint64     `json:"netns,omitempty"`
	Nonce   string     `json:"nonce,omitempty"`
	Start   time.Time  `json:"start,omitzero"`
	Version string     `json:"version,omitempty"`
	Src4    netip.Addr `json:"src4,omitzero"`
	Src6    netip.Addr `json:"src6,omitzero"`
	State   string     `json:"state,omitempty"`
	V       int        `json:"v,omitempty"`
}

// stateRunning is the State of every record that a daemon keeps alive.
const stateRunning = "running"

// recordOf returns the record of a node.
func recordOf(n control.Node) nodeJSON {
	p := n.Process
	return nodeJSON{ID: n.ID, Name: n.Name, Boot: p.Boot, NetNS: p.NetNS, Nonce: p.Nonce, Start: p.Start.Truncate(time.Second).UTC(),
		Version: p.Version, Src4: n.Source, Src6: n.SourceV6, State: stateRunning, V: n.Facts().V}
}

// recordFields are the names of the fields of nodeJSON.
func recordFields() []string {
	return []string{"id", "name", "boot", "netns", "nonce", "start", "version", "src4", "src6", "state", "v"}
}

// value returns the record with other fields besides its own.
func (n nodeJSON) value(others map[string]json.RawMessage) string {
	b, _ := json.Marshal(n) // texts, numbers and a time of this century cannot fail
	if len(others) == 0 {
		return string(b)
	}
	all := map[string]json.RawMessage{}
	json.Unmarshal(b, &all) // it has just been made
	for name, v := range others {
		all[name] = v
	}
	b, _ = json.Marshal(all)
	return string(b)
}

// parseNode reads whose a record is. ok is false for what overlayd did not write.
func parseNode(value []byte) (n nodeJSON, ok bool) {
	var in struct {
		ID   string `json:"id"`
		Name string `json:"name"`
	}
	err := json.Unmarshal(value, &in)
	return nodeJSON{ID: in.ID, Name: in.Name}, err == nil && in.ID != ""
}

// maxRecord bounds a record of which fields are kept, in bytes.
const maxRecord = 8 << 10

// unknownFields returns the fields of a record that nodeJSON does not have.
func unknownFields(value []byte) map[string]json.RawMessage {
	others := map[string]json.RawMessage{}
	if len(value) > maxRecord || json.Unmarshal(value, &others) != nil {
		return nil
	}
	for _, name := range recordFields() {
		delete(others, name)
	}
	return others
}
