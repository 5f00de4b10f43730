package nft

import (
	"fmt"
	"time"

	"github.com/mdlayher/netlink"
)

// Held are tables of [NewOwnedTable]. They exist until Close, or until the process ends, however it does.
type Held struct{ conn *netlink.Conn }

// Hold is [Commit] of steps that begin with a [NewOwnedTable].
func Hold(steps ...Step) (*Held, error) {
	c, err := dial()
	if err != nil {
		return nil, err
	}
	if err := commit(c, steps); err != nil {
		c.Close()
		return nil, err
	}
	return &Held{c}, nil
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
