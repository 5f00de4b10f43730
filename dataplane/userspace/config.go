package userspace

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"

	"github.com/overlayd/overlayd/encap"
)

// Config says what to open. GBP and learning are not options: only the kernel
// dataplane has them.
type Config struct {
	Log    *slog.Logger
	Local  netip.Addr // underlay address of this host, which the sockets are bound to
	Public netip.Addr // underlay address to publish; another one than Local behind NAT
	VNI    uint32     // 24 bits
	Port   uint16     // UDP port of every VTEP
	MTU    int        // of the overlay device in bytes, until the first Sync

	Offloads Offloads // that may be used

	// DF is to be set on what is sent over an IPv4 underlay. Hosts are then told
	// what the path to a VTEP takes, where it is less than MTU. Over IPv6 they always are.
	DF bool
}

// check names the first field that makes no sense.
func (c Config) check() error {
	switch {
	case !c.Local.IsValid() || c.Local.IsUnspecified() || c.Local.IsMulticast():
		return fmt.Errorf("config: Local %s is not the address of one host", c.Local)
	case !c.Public.IsValid() || c.Public.Is4() != c.Local.Is4():
		return fmt.Errorf("config: Public %s is not of the family of Local %s", c.Public, c.Local)
	case c.VNI > encap.MaxVNI:
		return fmt.Errorf("config: VNI %d is more than %d", c.VNI, encap.MaxVNI)
	case c.Port == 0:
		return errors.New("config: Port is 0")
	case c.MTU < minMTU || c.MTU > maxPacket:
		return fmt.Errorf("config: MTU %d is not in %d to %d", c.MTU, minMTU, maxPacket)
	}
	return nil
}

// minMTU is the least MTU of IPv4 (RFC 791), and of a TUN device.
const minMTU = 68
