package status

import (
	"net/netip"
	"time"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/controller"
	"github.com/overlayd/overlayd/dataplane"
)

// Version is the version of Network: another one means that a field was removed or has another meaning.
const Version = 1

// Network is how one overlay network of this node is. It is a value: nobody changes it after it was
// returned.
type Network struct {
	V    int    `json:"v"`              // Version
	Name string `json:"name,omitempty"` // empty if the daemon serves one network

	SessionStart time.Time `json:"session_start,omitzero"` // zero: there is no session now
	Sessions     uint64    `json:"sessions"`               // of this process so far: another one begins when config or underlay change, or the device has gone
	Err          string    `json:"err,omitempty"`          // why no session runs
	Fix          string    `json:"fix,omitempty"`          // what to do about Err, if anybody knows
	ErrSince     time.Time `json:"err_since,omitzero"`     // when the last session ended
	Ready        bool      `json:"ready"`
	ReadySince   time.Time `json:"ready_since,omitzero"`

	ConfigHeld *HeldConfig `json:"config_held,omitempty"` // nil: the store's config is in force, or nothing is known of it

	Mode     string    `json:"mode,omitempty"` // "kernel" or "userspace"; empty if nothing forwards
	VNI      uint32    `json:"vni,omitempty"`
	Port     uint16    `json:"port,omitempty"` // UDP
	MTU      int       `json:"mtu,omitempty"`  // of the overlay, in bytes
	Underlay *Underlay `json:"underlay,omitempty"`

	// UnderlayFaults say why the interface of the underlay carries nothing now, with a session and without one.
	UnderlayFaults []dataplane.Warning `json:"underlay_faults,omitempty"`
	// Beside names what serves this network on this host, too: a flanneld.
	Beside []dataplane.Warning `json:"beside,omitempty"`

	// Offloads are those that the userspace dataplane uses now, in the words of --debug-offloads; none in kernel mode.
	Offloads []string `json:"offloads,omitempty"`
	// SourceCheck tells which packets are taken for a peer's, in the words of --source-check: "off" too if the guard was switched
	// off, and the kernel forwards. EgressMark is the packet mark that lets packets go to the VXLAN port of a peer. Empty without VXLAN.
	SourceCheck string `json:"source_check,omitempty"`
	EgressMark  uint32 `json:"egress_mark,omitempty"`

	Lease      *Lease                  `json:"lease,omitempty"`       // nil: this node has none now
	LeaseFault controller.Fault        `json:"lease_fault,omitzero"`  // why this node has no lease, or cannot renew it now
	SyncFault  controller.Fault        `json:"sync_fault,omitzero"`   // why the last Sync failed as a whole
	FileFaults []controller.Fault      `json:"file_faults,omitempty"` // why files beside the subnet file, or it, cannot be written now
	Peers      []controller.PeerStatus `json:"peers,omitempty"`
	Probes     *Probes                 `json:"probes,omitempty"`  // how the peers answer; nil: nobody asks them
	Traffic    []PeerTraffic           `json:"traffic,omitempty"` // with the peers that had any, by VTEP; none in kernel mode, where nobody counts it

	Rejected []controller.EntryStatus `json:"rejected,omitempty"` // leases that are not used
	Bad      []controller.EntryStatus `json:"bad,omitempty"`      // entries of the store that cannot be read
	Control  controller.Stats         `json:"control"`            // what counts does so since the process began; the rest is of now
	Repairs  []Repairs                `json:"repairs,omitempty"`
	// ConfigRepairs is how often this daemon wrote the network config again that was gone from the store.
	ConfigRepairs uint64                 `json:"config_repairs,omitempty"`
	Parts         []dataplane.PartStatus `json:"parts,omitempty"` // in their order
	Store         *control.StoreStatus   `json:"store,omitempty"`
	Etcd          *Server                `json:"etcd,omitempty"`         // that this daemon runs, for all its networks; nil: none
	Certificates  []Certificate          `json:"certificates,omitempty"` // of the way to the store, for all networks
	Counters      map[string]uint64      `json:"counters,omitempty"`     // of the dataplanes of this process: see Counters

	// SharedPort has the counters of the UDP port that several networks share: what arrived there
	// before it was known for which of them. Empty if this network has a port of its own.
	SharedPort map[string]uint64 `json:"shared_port,omitempty"`
}

// HeldConfig says that the network config in the store is not in force, or that the store has none.
type HeldConfig struct {
	Networks []netip.Prefix `json:"networks"` // empty: there is no config that can be used
	Why      string         `json:"why"`
	Since    time.Time      `json:"since"`
	Until    time.Time      `json:"until,omitzero"` // when it is applied if it still stands then; zero: this host, or none, can carry it
}

// Repairs counts the objects of one kind that others changed and a part put right, since the process began. Those of
// the present session are in Parts too.
type Repairs struct {
	Part  string    `json:"part"`
	Kind  string    `json:"kind"`
	Count uint64    `json:"count"`
	Last  time.Time `json:"last"`
}

// Server is how a server is that the daemon runs in a process of its own.
type Server struct {
	Running bool      `json:"running"`
	PID     int       `json:"pid,omitempty"`    // of the process, if Running
	Since   time.Time `json:"since,omitzero"`   // when Running became what it is; zero: nothing is known yet
	Starts  uint64    `json:"starts"`           // how often it was started
	Refused uint64    `json:"refused"`          // connections that were refused, such as those without the right certificate
	Err     string    `json:"err,omitempty"`    // why it does not run
	Fix     string    `json:"fix,omitempty"`    // what to do about Err or Closed, if anybody knows
	Closed  string    `json:"closed,omitempty"` // why it runs without its TCP port: who has that
}

// Underlay is the interface that carries the overlay.
type Underlay struct {
	Interface string `json:"interface"`
	MTU       int    `json:"mtu"` // in bytes
	Ends      []End  `json:"ends"`
}

// End is this host's end of the underlay in one family.
type End struct {
	Local  netip.Addr `json:"local"`
	Public netip.Addr `json:"public"` // what other nodes send to
}

// Lease is this node's right to its subnets.
type Lease struct {
	Key     string         `json:"key"`
	Subnets []netip.Prefix `json:"subnets"`
	VTEPs   []VTEP         `json:"vteps"`
	Expires time.Time      `json:"expires,omitzero"` // unless it is renewed; zero: never
}

// VTEP is what this node publishes in one family.
type VTEP struct {
	Public netip.Addr `json:"public_ip"`
	MAC    string     `json:"mac,omitempty"` // empty without a VXLAN device
}

// Counter is one counter of a dataplane.
type Counter struct {
	Name  string // in snake_case: the same in log, status and metrics
	Value uint64
}

// Counters lists the counters of a dataplane, zeroes too, always in the same order.
func Counters(s dataplane.Stats) []Counter {
	all := []Counter{{"tx_packets", s.TxPackets}, {"tx_bytes", s.TxBytes}, {"rx_packets", s.RxPackets}, {"rx_bytes", s.RxBytes}}
	for reason, n := range s.Drops {
		all = append(all, Counter{"drops_" + dataplane.Drop(reason).String(), n})
	}
	return append(all,
		Counter{"tx_write_errors", s.TxWriteErrors},
		Counter{"tx_superpackets", s.Offload.TxSuperpackets},
		Counter{"tx_segments", s.Offload.TxSegments},
		Counter{"tx_batches", s.Offload.TxBatches},
		Counter{"rx_superpackets", s.Offload.RxSuperpackets},
		Counter{"rx_segments", s.Offload.RxSegments},
		Counter{"rx_batches", s.Offload.RxBatches},
		Counter{"fallbacks", s.Offload.Fallbacks},
		Counter{"narrow_paths", s.NarrowPaths})
}
