package etcd

import (
	"context"
	"errors"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/etcdkeys"
	"github.com/overlayd/overlayd/control/etcdrpc"
	"github.com/overlayd/overlayd/dataplane/pace"
)

// keep keeps the record alive until ctx ends, and checks it when the watch shows a change of it. If etcd does not
// answer, keep logs only a debug line: those who wait for an answer report it.
func (r *nodeRecord) keep(ctx context.Context) {
	defer close(r.done)
	var last string
	every := pace.Backoff{Low: r.store.cfg.NodeTTL / 3, High: r.store.cfg.NodeTTL / 3}
	beat := time.NewTimer(every.Next())
	defer beat.Stop()
	asked := time.Now()
	for {
		var err error
		select {
		case <-ctx.Done():
			return
		case <-beat.C:
			if err = r.beat(ctx); err == nil && r.doubt {
				err = r.check(ctx)
			}
			if err == nil {
				r.retire(ctx)
			}
			r.deleteOwn(ctx)
			if err == nil && time.Since(asked) >= askAfter*r.store.cfg.NodeTTL {
				asked = time.Now()
				if refused := r.askAsUser(ctx); refused != nil {
					r.store.logUser(ctx, refused)
				}
			}
			beat.Reset(every.Next())
		case <-r.look:
			if err = r.check(ctx); errors.Is(err, errRace) {
				pace.Wake(r.look)
			}
			pace.Sleep(ctx, lookGap, nil)
		}
		last = r.report(ctx, err, last)
	}
}

// askAfter is the time between two questions of askAsUser, in NodeTTLs: a minute, or 83 a second of 5000 nodes.
const askAfter = 3

// askAsUser reads a key. When users are turned on in etcd, or this node's user loses its rights, etcd ends no watch, and releases before 3.6 keep
// leases alive all the same: without a question nobody would know before the lease is to be renewed, a day later. StoreHealth has the answer.
func (r *nodeRecord) askAsUser(ctx context.Context) error {
	_, err := r.store.rpc.Get(ctx, "read network config", r.store.keys.Config())
	if errors.Is(err, control.ErrUser) {
		return err
	}
	return nil // the beat tells of all else
}

// logUser says once in a while that etcd refuses the user.
func (s *Store) logUser(ctx context.Context, err error) {
	if s.due(pace.Notice{Key: "user", Text: control.ErrUser.Error()}) { // whatever was asked
		s.log.WarnContext(ctx, "etcd refuses this node's user: its lease is not renewed, and a watch that breaks does not come back", "err", err,
			"fix", "give the daemon a user of etcd that may read and write there, or turn authentication off again")
	}
}

// lookGap is the least time between two checks: whoever may write to etcd can cause them.
const lookGap = 50 * time.Millisecond

// report logs how a beat or a check went. last is the error that it logged last, and so is what it returns.
func (r *nodeRecord) report(ctx context.Context, err error, last string) string {
	switch {
	case err == nil:
		return ""
	case ctx.Err() != nil:
	case etcdrpc.Refused(err):
		r.store.logRefusal(ctx, refusesRecord, err)
	case errors.Is(err, control.ErrUser):
		r.store.logUser(ctx, err)
	case errors.Is(err, control.ErrTaken) && err.Error() != last:
		r.store.log.ErrorContext(ctx, "another node has taken over this node's record", "err", err)
		return err.Error()
	default:
		r.store.log.DebugContext(ctx, "node record not renewed", "err", err)
	}
	return last
}

// beat extends the record's etcd lease, and writes the record again if that is gone.
func (r *nodeRecord) beat(ctx context.Context) error {
	if err := r.turn.Acquire(ctx, 1); err != nil {
		return err
	}
	id, refusal := r.lease, r.refusal
	r.turn.Release(1)
	if id != 0 {
		_, err := r.store.rpc.Refresh(ctx, id)
		if isGone := errors.Is(err, rpctypes.ErrLeaseNotFound); !isGone && (err != nil || refusal == nil) {
			return err
		}
	}
	return r.reclaim(ctx)
}

// saw makes the keeper check the record if the watch shows an unexpected value. A deleted record has no value.
func (r *nodeRecord) saw(kv *mvccpb.KeyValue) {
	r.seen.Store(kv)
	pace.Wake(r.look)
}

// wasAsked makes the keeper answer a question that was written at a revision.
func (r *nodeRecord) wasAsked(revision int64) {
	for asked := r.asked.Load(); revision > asked && !r.asked.CompareAndSwap(asked, revision); asked = r.asked.Load() {
	}
	pace.Wake(r.look)
}

// check makes sure that the record is there and this process's, and that it was written since somebody asked for it. It
// reads the record only if what the watch has shown is a reason to.
func (r *nodeRecord) check(ctx context.Context) error {
	asked, seen := r.asked.Load(), r.seen.Swap(nil)
	if err := r.turn.Acquire(ctx, 1); err != nil {
		return err
	}
	asShould := seen == nil || r.isOurs(seen) || seen.ModRevision < r.revision
	r.turn.Release(1)
	if asShould && asked <= r.answered && !r.doubt {
		return nil
	}
	r.doubt = true
	if err := r.mend(ctx, asked); err != nil {
		return err
	}
	r.doubt, r.answered = false, asked
	return nil
}

// isOurs reports whether kv, the record, is of this process. The caller has the turn.
func (r *nodeRecord) isOurs(kv *mvccpb.KeyValue) bool {
	return r.lease != 0 && leaseID(kv.Lease) == r.lease
}

// mend writes the record again if it is gone, overwritten, or older than a question of a revision.
func (r *nodeRecord) mend(ctx context.Context, asked int64) error {
	got, err := r.store.rpc.Get(ctx, "read node record", r.key)
	if err != nil {
		return err
	}
	text, host := "this node's record was missing in etcd: written again", ""
	if len(got.Kvs) > 0 {
		kv := got.Kvs[0]
		if ours, err := r.answer(ctx, kv, asked); ours || err != nil {
			return err
		}
		if err := r.checkOwner(ctx, kv, r.store.holds()); err != nil {
			return err
		}
		if other, _ := etcdkeys.ParseRecord(kv.Value); other.ID == r.node.ID {
			text = "this node's record in etcd was an older one of its own: written again"
		} else {
			text, host = "this node's record was overwritten in etcd: written again", printable(other.Name)
		}
	}
	if err := r.reclaim(ctx); err != nil {
		return err
	}
	if r.store.due(pace.Notice{Key: host, Text: text}) {
		args := []any{"public_ip", r.publicIP}
		if host != "" {
			args = append(args, "host", host)
		}
		r.store.log.WarnContext(ctx, text, args...)
	}
	return nil
}

// answer writes kv again, if that is this process's record and not younger than a question of a revision. The new
// revision is the answer.
func (r *nodeRecord) answer(ctx context.Context, kv *mvccpb.KeyValue, asked int64) (ours bool, err error) {
	if err := r.turn.Acquire(ctx, 1); err != nil {
		return false, err
	}
	defer r.turn.Release(1)
	switch {
	case !r.isOurs(kv):
		return false, nil
	case kv.ModRevision > asked:
		return true, nil
	case r.refusal != nil:
		return true, r.refusal
	}
	unchanged := clientv3.Compare(clientv3.ModRevision(r.key), "=", kv.ModRevision)
	resp, err := r.store.rpc.Txn(ctx, "answer another host with this node's ID", []clientv3.Cmp{unchanged}, []clientv3.Op{r.put()}, nil)
	r.revision = unfenced
	if err == nil && !resp.Succeeded {
		err = errRace
	}
	return true, err
}

// unfenced is the revision of a record that the keeper has written: no key has one below 0. An acquisition or a renewal that
// runs meanwhile then begins again, and reads before it writes what an earlier transaction, thought lost, has done.
const unfenced = -1

// reclaim is claim for the keeper.
func (r *nodeRecord) reclaim(ctx context.Context) error {
	if err := r.turn.Acquire(ctx, 1); err != nil {
		return err
	}
	defer r.turn.Release(1)
	err := r.claimInTurn(ctx)
	r.revision = unfenced
	return err
}
