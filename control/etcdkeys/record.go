package etcdkeys

import (
	"encoding/json"
	"net/netip"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/overlayd/overlayd/control"
)

// Record is the value of a node's record. ID and Name are all that overlayd before v 1 wrote; every
// version reads records of every other, and keeps the fields of its own record that it does not know.
type Record struct {
	ID      string     `json:"id"`
	Name    string     `json:"name"`
	Boot    string     `json:"boot,omitempty"`
	NetNS   uint64     `json:"netns,omitempty"`
	Nonce   string     `json:"nonce,omitempty"`
	Start   time.Time  `json:"start,omitzero"`
	Version string     `json:"version,omitempty"`
	Src4    netip.Addr `json:"src4,omitzero"`
	Src6    netip.Addr `json:"src6,omitzero"`
	User    bool       `json:"userspace,omitempty"`
	State   string     `json:"state,omitempty"`
	V       int        `json:"v,omitempty"`
}

// StateRunning is the State of every record that a daemon keeps alive.
const StateRunning = "running"

// RecordOf returns the record of a node.
func RecordOf(n control.Node) Record {
	p := n.Process
	return Record{ID: n.ID, Name: n.Name, Boot: p.Boot, NetNS: p.NetNS, Nonce: p.Nonce, Start: p.Start.Truncate(time.Second).UTC(),
		Version: p.Version, Src4: n.Source, Src6: n.SourceV6, User: n.Userspace, State: StateRunning, V: n.Facts().V}
}

// recordFields are the names of the fields of Record.
func recordFields() []string {
	return []string{"id", "name", "boot", "netns", "nonce", "start", "version", "src4", "src6", "userspace", "state", "v"}
}

// Value returns the record with other fields besides its own.
func (n Record) Value(others map[string]json.RawMessage) string {
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

// ParseRecord reads whose a record is. ok is false for what overlayd did not write.
func ParseRecord(value []byte) (n Record, ok bool) {
	var in struct {
		ID   string `json:"id"`
		Name string `json:"name"`
	}
	err := json.Unmarshal(value, &in)
	return Record{ID: in.ID, Name: in.Name}, err == nil && in.ID != ""
}

// MaxRecord bounds a record of which fields are kept, in bytes.
const MaxRecord = 8 << 10

// UnknownFields returns the fields of a record that Record does not have.
func UnknownFields(value []byte) map[string]json.RawMessage {
	others := map[string]json.RawMessage{}
	if len(value) > MaxRecord || json.Unmarshal(value, &others) != nil {
		return nil
	}
	for _, name := range recordFields() {
		delete(others, name)
	}
	return others
}

// Elsewhere reports whether a record is of another host, or of this one before it was booted last. It is false
// if the record does not say, as those of overlayd before v 1 do not.
func (n Record) Elsewhere(record []byte) bool {
	was := ParseProcess(record)
	differ := was.Boot != n.Boot || was.NetNS != n.NetNS
	return differ && was.Boot != "" && was.NetNS != 0 && n.Boot != "" && n.NetNS != 0
}

// ParseProcess reads who wrote a record. What is not as it should be says nothing.
func ParseProcess(record []byte) (p struct {
	Boot  string `json:"boot"`
	NetNS uint64 `json:"netns"`
	Nonce string `json:"nonce"`
}) {
	_ = json.Unmarshal(record, &p)
	return p
}

// OriginalOf reports whether a record is the sign of life of another host with this node's ID.
func (n Record) OriginalOf(kv *mvccpb.KeyValue) (original Record, live bool) {
	original, ok := ParseRecord(kv.Value)
	return original, ok && original.ID == n.ID && kv.Lease != 0 && n.Elsewhere(kv.Value)
}

// IsHere reports whether a record with that boot ID and network namespace may be of a process of this host.
func (n Record) IsHere(boot string, netNS uint64) bool {
	return n.Boot == "" || n.NetNS == 0 || boot == n.Boot && netNS == n.NetNS
}
