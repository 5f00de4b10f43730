package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// patience bounds how long the kernel may take over one exchange.
const patience = 30 * time.Second

// ErrChanging means that others kept changing the rules while they were read.
var ErrChanging = errors.New("rules keep changing")

// dial opens a socket for one reading or one batch, so that the rest of an exchange that broke
// off cannot be taken for the answer to the next.
func dial() (*netlink.Conn, error) { return dialFrom(0) }

// dialFrom is dial with that port ID; 0: the kernel chooses one.
func dialFrom(port uint32) (*netlink.Conn, error) {
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{PID: port})
	if err != nil {
		return nil, fmt.Errorf("open netfilter socket: %w", err)
	}
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		c.Close()
		return nil, fmt.Errorf("open netfilter socket: %w", err)
	}
	return c, nil
}

// attributes encodes netlink attributes in network byte order.
func attributes(f func(e *netlink.AttributeEncoder)) []byte {
	e := netlink.NewAttributeEncoder()
	e.ByteOrder = binary.BigEndian
	f(e)
	b, err := e.Encode()
	if err != nil {
		panic(err) // only for an attribute of 64 KiB
	}
	return b
}

func message(kind int, f Family, flags netlink.HeaderFlags, attrs []byte) netlink.Message {
	return netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | kind), Flags: netlink.Request | flags},
		Data:   append([]byte{uint8(f), unix.NFNETLINK_V0, 0, 0}, attrs...), // struct nfgenmsg
	}
}

// query returns the answers without their struct nfgenmsg, and no answer if the object does not exist.
func query(c *netlink.Conn, m netlink.Message) ([][]byte, error) {
	msgs, err := c.Execute(m)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var bodies [][]byte
	for _, m := range msgs {
		switch {
		case m.Header.Flags&netlink.DumpInterrupted != 0:
			return nil, ErrChanging
		case len(m.Data) >= sizeofNfgenmsg:
			bodies = append(bodies, m.Data[sizeofNfgenmsg:])
		}
	}
	return bodies, nil
}

// decode calls attribute for each attribute of b, in network byte order.
func decode(b []byte, attribute func(d *netlink.AttributeDecoder)) error {
	d, err := netlink.NewAttributeDecoder(b)
	if err != nil {
		return fmt.Errorf("decode rules: %w", err)
	}
	d.ByteOrder = binary.BigEndian
	for d.Next() {
		attribute(d)
	}
	if err := d.Err(); err != nil {
		return fmt.Errorf("decode rules: %w", err)
	}
	return nil
}
