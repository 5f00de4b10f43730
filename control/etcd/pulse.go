package etcd

import (
	"context"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/overlayd/overlayd/control"
)

// A record is the sign of life of a node because that node keeps its etcd lease alive, each third of its TTL. Whoever may write to etcd
// can put a record under a lease of any length that nobody keeps alive. Such a record must not keep a node from its own address.

// maxRecordTTL is longer than the etcd lease of any record that an overlayd writes, unless Config.NodeTTL is. Peers keep a node whose entry is
// junk for a minute, and by then a record under a shorter one is known to be dead.
const maxRecordTTL = time.Minute

// pulse says whether somebody keeps a record alive.
type pulse int

const (
	unsure  pulse = iota // it has been looked at for less time than its node takes to renew it
	beating              // it is renewed, or trusted until it expires
	dead                 // nobody has renewed it when its node would have
)

// beat is what is remembered of the etcd lease of a record.
type beat struct {
	lease   leaseID
	left    time.Duration // of it, in whole seconds
	at      time.Time     // when that was read
	renewed bool          // somebody has extended it since it was first looked at
}

// pulseOf returns whether somebody keeps a record of another host alive, and within what time it expires if nobody does. A node without
// a lease trusts a record whose TTL is about its own until that is over. One that holds a lease wants to see that it is renewed.
func (s *Store) pulseOf(ctx context.Context, kv *mvccpb.KeyValue, holds bool) (p pulse, stays time.Duration, err error) {
	asked := time.Now()
	left, granted, err := s.rpc.TimeLeft(ctx, leaseID(kv.Lease))
	switch {
	case err != nil:
		return unsure, 0, err
	case !s.isPlausible(left, granted):
		return dead, 0, nil
	case !holds && granted <= 2*s.cfg.NodeTTL:
		return beating, granted, nil
	}
	b := s.noteBeat(string(kv.Key), beat{lease: leaseID(kv.Lease), left: left}, asked)
	switch {
	case isOverdue(left, granted), asked.Sub(b.at) >= granted/2+time.Second:
		return dead, 0, nil
	case b.renewed:
		return beating, granted, nil
	}
	return unsure, granted, nil
}

// isPlausible reports whether a record may hang on an etcd lease that was granted for that long. One that is gone has no time left.
func (s *Store) isPlausible(left, granted time.Duration) bool {
	return left >= 0 && granted <= max(maxRecordTTL, 2*s.cfg.NodeTTL)
}

// isOverdue reports whether a node that lives would have renewed its record. left is rounded down; a record is kept alive each third of
// its time.
func isOverdue(left, granted time.Duration) bool { return 2*(left+time.Second) <= granted }

// noteBeat returns what is remembered of the etcd lease of a record, and takes over what was read now. asked is when it was asked for.
func (s *Store) noteBeat(record string, now beat, asked time.Time) beat {
	now.at = time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	was, known := s.beats[record]
	if known = known && was.lease == now.lease; known {
		now.renewed = now.left >= was.left+time.Second-asked.Sub(was.at) // more is left than could be otherwise: was.left is rounded down
		if !now.renewed {
			return was
		}
	}
	if s.beats == nil {
		s.beats = map[string]beat{}
	}
	s.beats[record] = now
	return now
}

// holds reports whether this process has the lease of its node.
func (s *Store) holds() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held != (control.Lease{})
}

// notYet is the error of a node that holds a lease and has found a record of another host in the place of its own.
func (r *nodeRecord) notYet(host string) error {
	return fmt.Errorf("the node record of %s is of host %.64q: waiting to see whether that host keeps it alive", r.publicIP, host)
}
