package control

import (
	"context"
	"net/netip"
	"time"
)

// What only some stores can do is an interface of its own, which a caller asks for by a type
// assertion to it and never to a concrete store. A store that holds connections is an io.Closer.

// ConfigWatcher is a Store that reports changes of the network config.
type ConfigWatcher interface {
	// WatchNetwork sends the config when it is another one, until ctx ends; then it closes the
	// channel. That the config is missing or not valid is logged and sent too, and so is the
	// one before when it is back. While the store does not answer nothing is sent.
	WatchNetwork(ctx context.Context) <-chan StoredNetwork
}

// StoredNetwork is what a store has for a network config.
type StoredNetwork struct {
	Network Network
	Err     error // why the store has no config that can be used, such as ErrNoNetwork or a *NetworkError; nil: Network can be used
}

// Same reports whether n and other say the same about the store.
func (n StoredNetwork) Same(other StoredNetwork) bool {
	if n.Err == nil || other.Err == nil {
		return n == other
	}
	return n.Err.Error() == other.Err.Error()
}

// ConfigWriter is a Store that takes a first network config.
type ConfigWriter interface {
	// Init writes the config, in flannel's JSON, unless there is one, and reports whether it did.
	Init(ctx context.Context, config []byte) (created bool, err error)
}

// Publisher is a Store that knows which leases a node publishes, under whatever address.
type Publisher interface {
	// Published returns the leases of node, none if it has none.
	Published(ctx context.Context, node Node) ([]Lease, error)
}

// ReadyMarker is a Store in which others wait for this node's network.
type ReadyMarker interface {
	// MarkReady tells them that it is up.
	MarkReady(ctx context.Context) error
}

// Event is something about this node that people who look at the store should see.
type Event struct {
	Reason string // stable, in CamelCase: the Event* constants
	Text   string // for people
	Over   bool   // what was told before is no longer so
}

// The reasons of events.
const (
	EventLeaseLost       = "LeaseLost"
	EventPeerUnreachable = "PeerUnreachable"
	EventMTUMismatch     = "MTUMismatch"
	EventConfigInvalid   = "ConfigInvalid"
)

// EventTeller is a Store that shows events to people.
type EventTeller interface {
	// Tell adds an event. A store that may not do that says so once, and Tell does nothing from then on.
	Tell(ctx context.Context, e Event) error
}

// AddressSource is a Store that holds the public addresses of this node.
type AddressSource interface {
	// PublicIPs returns them; an invalid address means that the store has none of that family.
	PublicIPs(ctx context.Context) (v4, v6 netip.Addr, err error)
}

// Fitter is a Store whose nodes get their subnets from somebody else: no network config gives them others.
type Fitter interface {
	// Fits returns why this node cannot have a lease in n, or why that cannot be told now.
	Fits(ctx context.Context, n Network) error
}

// LiveNodeFinder is a Store that knows which nodes live.
type LiveNodeFinder interface {
	// OtherNode reports whether another host publishes an address and was alive seconds ago, and its name. Another
	// host is one with another ID than node's, or with a copy of node's file. It is an error if that is not known yet.
	OtherNode(ctx context.Context, node Node, public netip.Addr) (host string, lives bool, err error)
}

// Bequeather is a Store with whose lease the next process of this node can go on as it is.
type Bequeather interface {
	// Bequeath returns the handles of what the store keeps alive for this node besides the lease, for
	// Node.Handed of the next process. From now on Close withdraws nothing.
	Bequeath() []int64
}

// CertificateReader is a Store that reaches its server by certificates in files.
type CertificateReader interface {
	// ReadCertificates reads the files again. If one has changed, the store connects again. If one cannot be used,
	// it goes on with those that were read before, and the error names it.
	ReadCertificates() (CertificateState, error)
}

// CertificateState says what there is to read.
type CertificateState int

// The states, in an order: of several stores the last one counts.
const (
	CertificatesNone    CertificateState = iota // the store has no files
	CertificatesSame                            // they are as they were
	CertificatesChanged                         // the store connects again
)

// String returns the state as the log has it.
func (s CertificateState) String() string {
	return [...]string{"none", "the same", "others: connecting again"}[s]
}

// RemoteLister is a Store that knows which addresses it is connected to.
type RemoteLister interface {
	// Remotes returns them, sorted. It may be called at any time and waits for nothing.
	Remotes() []netip.Addr
}

// StoreReporter is a Store that says how it is.
type StoreReporter interface {
	// Status may be called at any time and waits for nothing.
	Status() StoreStatus
}

// StoreStatus is how a store is: a value.
type StoreStatus struct {
	Kind       string    `json:"kind"`               // "etcd" or "kubernetes"
	Endpoint   string    `json:"endpoint,omitempty"` // URLs at which it is reached, comma-separated and without a password
	Connected  bool      `json:"connected"`
	Err        string    `json:"err,omitempty"`        // of the last request, if it failed
	Refusal    bool      `json:"refusal,omitempty"`    // the store may run: Err has a Refusal, and people have to change how it is reached
	Untrusted  bool      `json:"untrusted,omitempty"`  // Err is ErrUntrusted or ErrNoAccess
	Since      time.Time `json:"since,omitzero"`       // when Connected or Err became what they are
	Revision   int64     `json:"revision,omitempty"`   // of the store, as last seen
	LastAnswer time.Time `json:"last_answer,omitzero"` // when the store answered last
	Clones     []Clone   `json:"clones,omitempty"`     // the last ones, oldest first

	Unused []UnusedEndpoint `json:"unused,omitempty"` // sorted
}

// UnusedEndpoint is an endpoint of the store that answers and is not used.
type UnusedEndpoint struct {
	Endpoint string    `json:"endpoint"` // as it was given
	Err      string    `json:"err"`      // why
	Fix      string    `json:"fix"`      // what to do about it
	Since    time.Time `json:"since"`
}

// Clone is another host that was seen to run with this node's ID, because it has a copy of this node's file, or this host has
// a copy of its file.
type Clone struct {
	Host     string     `json:"host"` // its name, safe to print
	PublicIP netip.Addr `json:"public_ip,omitzero"`
	Boot     string     `json:"boot,omitempty"` // ID of its last boot, safe to print
	Since    time.Time  `json:"since"`          // when it was seen first
	Gone     time.Time  `json:"gone,omitzero"`  // when it ceased to live; zero: it has not
}

// Versioner is a Store that knows the version of its server.
type Versioner interface {
	// ServerVersion asks the server. Whoever may not be told gets an error.
	ServerVersion(ctx context.Context) (string, error)
}
