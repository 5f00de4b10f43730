package nft

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Held are tables of [NewOwnedTable]. They exist until Close, or until the process ends, however it does.
type Held struct{ conn *netlink.Conn }

// Hold is [Commit] of steps that begin with a [NewOwnedTable].
func Hold(steps ...Step) (*Held, error) {
	c, err := dialApart()
	if err != nil {
		return nil, err
	}
	if err := commit(c, steps); err != nil {
		c.Close()
		return nil, err
	}
	return &Held{c}, nil
}

// dialApart opens a socket with a random port ID. The kernel would choose the process ID if no other socket has it. But a socket that is being closed loses its ID first,
// and the tables of that ID are removed later: those of a new owner, too (netlink_release in af_netlink.c, then nft_rcv_nl_event in nf_tables_api.c).
func dialApart() (c *netlink.Conn, err error) {
	for range 8 {
		if c, err = dialFrom(1<<31 | rand.Uint32()); !errors.Is(err, unix.EADDRINUSE) {
			break
		}
	}
	return c, err
}

// Commit is the function [Commit] for steps that change the tables: nobody else may.
func (h *Held) Commit(steps []Step) error {
	if len(steps) == 0 {
		return nil
	}
	if err := h.conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return fmt.Errorf("change rules: %w", err)
	}
	return commit(h.conn, steps)
}

// Close removes the tables: when it returns no packet meets their rules any more.
func (h *Held) Close() error {
	if err := h.conn.Close(); err != nil {
		return fmt.Errorf("close netfilter socket: %w", err)
	}
	return nil
}
