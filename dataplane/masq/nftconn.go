package masq

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// netlinkPatience bounds how long the kernel may take over one exchange.
const netlinkPatience = 10 * time.Second

// dial opens a socket for one reading or one batch, so that what is left of an
// exchange that broke off cannot be taken for the answer to the next. (The Conn of
// google/nftables is not used: it hides the errno of what does not exist,
// and drops the flags of a masquerade expression that has ports.)
func dial() (*netlink.Conn, error) {
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, fmt.Errorf("open netfilter socket: %w", err)
	}
	if err := c.SetDeadline(time.Now().Add(netlinkPatience)); err != nil {
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

func message(kind int, f family, flags netlink.HeaderFlags, attrs []byte) netlink.Message {
	return netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | kind), Flags: netlink.Request | flags},
		Data:   append([]byte{uint8(f), unix.NFNETLINK_V0, 0, 0}, attrs...), // struct nfgenmsg
	}
}

// query returns the answers without their struct nfgenmsg. Of what does not exist there are none.
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
			return nil, errChanging
		case len(m.Data) >= 4:
			bodies = append(bodies, m.Data[4:])
		}
	}
	return bodies, nil
}

// errChanging says that the rules changed while they were read.
var errChanging = errors.New("rules keep changing")

// step is one message of a batch, and what it does in words.
type step struct {
	netlink.Message
	what string
}

// commit makes all steps happen at once, or none.
func commit(steps []step) error {
	if len(steps) == 0 {
		return nil
	}
	c, err := dial()
	if err != nil {
		return err
	}
	defer c.Close()
	frame := func(kind netlink.HeaderType) netlink.Message {
		return netlink.Message{
			Header: netlink.Header{Type: kind, Flags: netlink.Request},
			Data:   []byte{unix.NFPROTO_UNSPEC, unix.NFNETLINK_V0, 0, unix.NFNL_SUBSYS_NFTABLES},
		}
	}
	msgs := []netlink.Message{frame(unix.NFNL_MSG_BATCH_BEGIN)}
	for _, s := range steps {
		s.Header.Flags |= netlink.Acknowledge
		msgs = append(msgs, s.Message)
	}
	msgs = append(msgs, frame(unix.NFNL_MSG_BATCH_END))
	if _, err := c.SendMessages(msgs); err != nil {
		return fmt.Errorf("send rules: %w", err)
	}
	for _, s := range steps {
		if _, err := c.Receive(); err != nil {
			return fmt.Errorf("%s: %w", s.what, err)
		}
	}
	return nil
}

func newTable(f family, table string) step {
	attrs := attributes(func(e *netlink.AttributeEncoder) { e.String(unix.NFTA_TABLE_NAME, table) })
	return step{message(unix.NFT_MSG_NEWTABLE, f, netlink.Create, attrs), fmt.Sprintf("add table %s %s", f, table)}
}

func deleteTable(f family, table string) step {
	attrs := attributes(func(e *netlink.AttributeEncoder) { e.String(unix.NFTA_TABLE_NAME, table) })
	return step{message(unix.NFT_MSG_DELTABLE, f, 0, attrs), fmt.Sprintf("delete table %s %s", f, table)}
}

// newChain adds a chain, one that masquerades in the hook where base is true.
func newChain(f family, table, chain string, base bool) step {
	attrs := attributes(func(e *netlink.AttributeEncoder) {
		e.String(unix.NFTA_CHAIN_TABLE, table)
		e.String(unix.NFTA_CHAIN_NAME, chain)
		if base {
			e.Nested(unix.NFTA_CHAIN_HOOK, func(e *netlink.AttributeEncoder) error {
				e.Uint32(unix.NFTA_HOOK_HOOKNUM, unix.NF_INET_POST_ROUTING)
				e.Uint32(unix.NFTA_HOOK_PRIORITY, 100) // NF_IP_PRI_NAT_SRC
				return nil
			})
			e.Uint32(unix.NFTA_CHAIN_POLICY, 1) // NF_ACCEPT
			e.String(unix.NFTA_CHAIN_TYPE, "nat")
		}
	})
	return step{message(unix.NFT_MSG_NEWCHAIN, f, netlink.Create, attrs), fmt.Sprintf("add chain %s %s %s", f, table, chain)}
}

func deleteChain(f family, table, chain string) step {
	attrs := attributes(func(e *netlink.AttributeEncoder) {
		e.String(unix.NFTA_CHAIN_TABLE, table)
		e.String(unix.NFTA_CHAIN_NAME, chain)
	})
	return step{message(unix.NFT_MSG_DELCHAIN, f, 0, attrs), fmt.Sprintf("delete chain %s %s %s", f, table, chain)}
}

// newRule appends a rule of encoded expressions.
func newRule(f family, table, chain string, exprs [][]byte) step {
	attrs := attributes(func(e *netlink.AttributeEncoder) {
		e.String(unix.NFTA_RULE_TABLE, table)
		e.String(unix.NFTA_RULE_CHAIN, chain)
		e.Nested(unix.NFTA_RULE_EXPRESSIONS, func(e *netlink.AttributeEncoder) error {
			for _, x := range exprs {
				e.Bytes(unix.NLA_F_NESTED|unix.NFTA_LIST_ELEM, x)
			}
			return nil
		})
	})
	return step{message(unix.NFT_MSG_NEWRULE, f, netlink.Create|netlink.Append, attrs), fmt.Sprintf("add rule to %s %s %s", f, table, chain)}
}

// deleteRule removes the rule of a handle, all rules of the chain for handle 0.
func deleteRule(f family, table, chain string, handle uint64) step {
	attrs := attributes(func(e *netlink.AttributeEncoder) {
		e.String(unix.NFTA_RULE_TABLE, table)
		e.String(unix.NFTA_RULE_CHAIN, chain)
		if handle != 0 {
			e.Uint64(unix.NFTA_RULE_HANDLE, handle)
		}
	})
	return step{message(unix.NFT_MSG_DELRULE, f, 0, attrs), fmt.Sprintf("delete rule of %s %s %s", f, table, chain)}
}
