package node

import (
	"context"
	"errors"
	"slices"
	"time"
)

// running is what a goroutine beside Daemon.Run knows of it.
type running struct {
	end   context.CancelCauseFunc
	ended func() error // not nil: Run has been told to end
}

// The errors of holdSyncs.
var (
	errEnding = errors.New("the daemon is about to end")
	errBusy   = errors.New("the dataplane is being set up: try again in a few seconds")
)

// holdSyncs keeps everybody from syncing the overlays of sessions, which are about to forward no more, until unlock
// is called. With errBusy, a Sync took longer than patience, as one that waits for the lock of iptables does, or a
// session has ended. With errEnding, Run has been told to end, and its sessions end by themselves.
func (r *running) holdSyncs(sessions []*Session, patience time.Duration) (unlock func(), err error) {
	var held []*Session
	for deadline := time.Now().Add(patience); len(held) < len(sessions); {
		if s := sessions[len(held)]; s.overlay.TryHold() {
			held = append(held, s)
			continue
		}
		if r.ended() != nil || time.Now().After(deadline) {
			break
		}
		time.Sleep(time.Millisecond)
	}
	unlock = func() {
		for _, s := range held {
			s.overlay.LetGo()
		}
	}
	over := func(s *Session) bool { return s.network.snapshot.Load().session != s }
	switch {
	case r.ended() != nil:
		err = errEnding
	case len(held) < len(sessions) || slices.ContainsFunc(sessions, over):
		err = errBusy
	default:
		return unlock, nil
	}
	unlock()
	return nil, err
}
