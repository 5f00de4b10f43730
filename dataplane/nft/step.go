package nft

import (
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Step is one change of a batch.
type Step struct {
	message netlink.Message
	what    string // in words, for errors
}

// String returns what the step does, in words.
func (s Step) String() string { return s.what }

// Commit makes all steps happen at once, or none. The error names the step that the kernel
// refused, and wraps its errno.
func Commit(steps []Step) error {
	if len(steps) == 0 {
		return nil
	}
	c, err := dial()
	if err != nil {
		return err
	}
	defer c.Close()
	return commit(c, steps)
}

func commit(c *netlink.Conn, steps []Step) error {
	frame := func(kind netlink.HeaderType) netlink.Message {
		return netlink.Message{
			Header: netlink.Header{Type: kind, Flags: netlink.Request},
			Data:   []byte{unix.NFPROTO_UNSPEC, unix.NFNETLINK_V0, 0, unix.NFNL_SUBSYS_NFTABLES},
		}
	}
	msgs := []netlink.Message{frame(unix.NFNL_MSG_BATCH_BEGIN)}
	for _, s := range steps {
		s.message.Header.Flags |= netlink.Acknowledge
		msgs = append(msgs, s.message)
	}
	msgs = append(msgs, frame(unix.NFNL_MSG_BATCH_END))
	if err := makeRoom(c, msgs); err != nil {
		return err
	}
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

// answerSize is half of what an answer of the kernel takes of a socket's receive buffer at most, in bytes: the kernel doubles the size of a buffer. All answers
// come before the first one can be read.
const answerSize = 1 << 10

// usualBuffer is what a socket's buffers hold at least, in bytes (net.core.wmem_default, net.core.rmem_default).
const usualBuffer = 128 << 10

// makeRoom lets the socket send all messages as one, which a batch has to be, and hold all answers.
func makeRoom(c *netlink.Conn, msgs []netlink.Message) error {
	if answers := len(msgs) * answerSize; answers > usualBuffer {
		if err := c.SetReadBuffer(answers); err != nil {
			return fmt.Errorf("make room for %d answers: %w", len(msgs), err)
		}
	}
	size := 0
	for _, m := range msgs {
		size += unix.SizeofNlMsghdr + len(m.Data)
	}
	if size < usualBuffer {
		return nil
	}
	if err := c.SetWriteBuffer(2 * size); err != nil {
		return fmt.Errorf("make room for %d bytes of rules: %w", size, err)
	}
	return nil
}

// NewTable adds a table, unless one with that name exists.
func NewTable(f Family, table string) Step {
	attrs := attributes(func(e *netlink.AttributeEncoder) { e.String(unix.NFTA_TABLE_NAME, table) })
	return Step{message(unix.NFT_MSG_NEWTABLE, f, netlink.Create, attrs), fmt.Sprintf("add table %s %s", f, table)}
}

// ownedTable is NFT_TABLE_F_OWNER of linux/netfilter/nf_tables.h (Linux 5.12).
const ownedTable = 2

// NewOwnedTable adds a table that only the holder of it can change (see [Hold]), and that goes with the holder.
// Kernels before 5.12 refuse it.
func NewOwnedTable(f Family, table string) Step {
	attrs := attributes(func(e *netlink.AttributeEncoder) {
		e.String(unix.NFTA_TABLE_NAME, table)
		e.Uint32(unix.NFTA_TABLE_FLAGS, ownedTable)
	})
	return Step{message(unix.NFT_MSG_NEWTABLE, f, netlink.Create|netlink.Excl, attrs), fmt.Sprintf("add table %s %s of this process", f, table)}
}

// DeleteTable deletes a table with all its chains.
func DeleteTable(f Family, table string) Step {
	attrs := attributes(func(e *netlink.AttributeEncoder) { e.String(unix.NFTA_TABLE_NAME, table) })
	return Step{message(unix.NFT_MSG_DELTABLE, f, 0, attrs), fmt.Sprintf("delete table %s %s", f, table)}
}

// Hook makes a chain a base chain, which packets enter at that hook.
type Hook struct {
	Type     string // filter, nat or route
	Number   uint32 // unix.NF_INET_...
	Priority int32  // of chains in one hook the lowest comes first
	Drop     bool   // the policy is drop, not accept
	Device   string // of a chain of family netdev: the interface
}

// Verdicts of netfilter (linux/netfilter.h).
const (
	verdictDrop   = 0
	verdictAccept = 1
)

// NewChain adds a chain, unless one with that name exists: a base chain if hook is not nil.
func NewChain(f Family, table, chain string, hook *Hook) Step {
	attrs := attributes(func(e *netlink.AttributeEncoder) {
		e.String(unix.NFTA_CHAIN_TABLE, table)
		e.String(unix.NFTA_CHAIN_NAME, chain)
		if hook != nil {
			hook.encode(e)
		}
	})
	return Step{message(unix.NFT_MSG_NEWCHAIN, f, netlink.Create, attrs), fmt.Sprintf("add chain %s %s %s", f, table, chain)}
}

func (h *Hook) encode(e *netlink.AttributeEncoder) {
	e.Nested(unix.NFTA_CHAIN_HOOK, func(e *netlink.AttributeEncoder) error {
		e.Uint32(unix.NFTA_HOOK_HOOKNUM, h.Number)
		e.Uint32(unix.NFTA_HOOK_PRIORITY, uint32(h.Priority))
		if h.Device != "" {
			e.String(unix.NFTA_HOOK_DEV, h.Device)
		}
		return nil
	})
	policy := uint32(verdictAccept)
	if h.Drop {
		policy = verdictDrop
	}
	e.Uint32(unix.NFTA_CHAIN_POLICY, policy)
	e.String(unix.NFTA_CHAIN_TYPE, h.Type)
}

// DeleteChain deletes a chain, which must be empty.
func DeleteChain(f Family, table, chain string) Step {
	attrs := attributes(func(e *netlink.AttributeEncoder) {
		e.String(unix.NFTA_CHAIN_TABLE, table)
		e.String(unix.NFTA_CHAIN_NAME, chain)
	})
	return Step{message(unix.NFT_MSG_DELCHAIN, f, 0, attrs), fmt.Sprintf("delete chain %s %s %s", f, table, chain)}
}

// NewRule appends a rule of encoded expressions (see [Encode]) to a chain. The comment says whose
// it is; "" is not a comment, and more than 254 bytes are cut off.
func NewRule(f Family, table, chain string, exprs [][]byte, comment string) Step {
	attrs := attributes(func(e *netlink.AttributeEncoder) {
		e.String(unix.NFTA_RULE_TABLE, table)
		e.String(unix.NFTA_RULE_CHAIN, chain)
		e.Nested(unix.NFTA_RULE_EXPRESSIONS, func(e *netlink.AttributeEncoder) error {
			for _, x := range exprs {
				e.Bytes(unix.NLA_F_NESTED|unix.NFTA_LIST_ELEM, x)
			}
			return nil
		})
		if comment != "" {
			e.Bytes(unix.NFTA_RULE_USERDATA, encodeComment(comment))
		}
	})
	return Step{message(unix.NFT_MSG_NEWRULE, f, netlink.Create|netlink.Append, attrs), fmt.Sprintf("add rule to %s %s %s", f, table, chain)}
}

// DeleteRule deletes the rule of a handle; handle 0 deletes all rules of the chain.
func DeleteRule(f Family, table, chain string, handle uint64) Step {
	attrs := attributes(func(e *netlink.AttributeEncoder) {
		e.String(unix.NFTA_RULE_TABLE, table)
		e.String(unix.NFTA_RULE_CHAIN, chain)
		if handle != 0 {
			e.Uint64(unix.NFTA_RULE_HANDLE, handle)
		}
	})
	return Step{message(unix.NFT_MSG_DELRULE, f, 0, attrs), fmt.Sprintf("delete rule of %s %s %s", f, table, chain)}
}
