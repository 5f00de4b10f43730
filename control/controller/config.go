package controller

import (
	"log/slog"
	"time"

	"github.com/overlayd/overlayd/control"
)

// Config is what a Controller needs. A field must be set unless its comment allows a zero value.
type Config struct {
	Store      control.Store
	Overlay    Overlay         // open; the caller runs it
	Node       control.Node    // Previous as subnetfile.Read returned it
	Network    control.Network // as Store.Network returned it, and checked to be one that Overlay can carry
	MTU        int             // of the overlay device, in bytes, until SetMTU
	SubnetFile string          // path; "" writes none. It is removed while a lost lease has no successor
	IPMasq     bool            // FLANNEL_IPMASQ of the subnet file
	// WroteSubnetFile is called with the modification time of the subnet file whenever it has been made, or
	// found, as it should be; it may be nil. A file with another time is somebody else's.
	WroteSubnetFile func(modified time.Time)
	// RestoredSubnetFile is called after somebody else had removed or changed the subnet file. It may be nil.
	RestoredSubnetFile func()
	// WorkloadAddress gives the device the first usable address of each subnet, the one that
	// the subnet file names: for containers that share the daemon's network namespace.
	WorkloadAddress bool
	RenewMargin     time.Duration // before expiry; 0 is an hour
	// SharedMACs says that the Overlay knows VTEPs by their addresses: those of several peers, and
	// of this node, may have one MAC.
	SharedMACs bool
	Log        *slog.Logger
	Ready      func() // may be nil; called once, when Status.Ready becomes true
	// Fix says what to do about an error; nil, or empty: nobody knows.
	Fix func(error) string
	// Published is called after each new Status; it may be nil. Calls come from several
	// goroutines, and it must not block: it wakes whoever reads Controller.Status.
	Published func()
}

// defaultRenewMargin is flannel's --subnet-lease-renew-margin.
const defaultRenewMargin = time.Hour

// withDefaults fills in what is zero.
func (c Config) withDefaults() Config {
	if c.RenewMargin <= 0 {
		c.RenewMargin = defaultRenewMargin
	}
	if c.Fix == nil {
		c.Fix = func(error) string { return "" }
	}
	if c.Published == nil {
		c.Published = func() {}
	}
	return c
}
