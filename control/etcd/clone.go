package etcd

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/etcdkeys"
	"github.com/overlayd/overlayd/control/etcdrpc"
	"github.com/overlayd/overlayd/dataplane/pace"
)

// A clone is a host that has a copy of another's node file, and so its ID. The boot ID and the network
// namespace in a record tell it from an earlier process of the same host, which may be succeeded at once.
//
// A node that finds a record with its own ID from elsewhere asks whether that host lives: it writes a key beside the record. A
// living daemon sees the key in its watch, logs it, and writes its record again. That is the answer. Then the lease stays that
// host's. The asking node takes another lease, or, if it also has the same address, ends with control.ErrCloned. A host
// that is gone does not answer, and its record expires within Config.NodeTTL. A host that does not answer but keeps its
// record alive, such as an older overlayd that knows no questions, keeps its lease, too.

// notCloned returns what of own is not the lease of another host that lives and has this node's ID. own
// are leases that a node with this ID has written under an earlier public IP. While it is not known
// whether that host lives, which is for a little more than Config.NodeTTL at most, it is an error.
func (a *acquisition) notCloned(ctx context.Context, own []ownEntry) (kept []ownEntry, err error) {
	for _, l := range own {
		if l.SamePublicIP(a.offer) {
			kept = append(kept, l) // who has the record has it
			continue
		}
		key := a.keys.Node(l.Identity())
		got, err := a.rpc.Get(ctx, "read node record", key)
		if err != nil {
			return nil, err
		}
		var revision int64 // 0: nobody keeps a record there
		if len(got.Kvs) > 0 {
			original, isClone := etcdkeys.RecordOf(a.node).OriginalOf(got.Kvs[0])
			p := dead
			if isClone {
				if p, _, err = a.pulseOf(ctx, got.Kvs[0], false); err != nil {
					return nil, err
				}
			}
			if p != dead {
				if a.ask(ctx, etcdkeys.RecordOf(a.node), a.offer.Identity(), got.Kvs[0]) == notKnown || p == unsure {
					return nil, fmt.Errorf("%s belongs to host %.64q at %s, which has this node's ID: waiting to see whether it lives",
						l.CIDRs(), original.Name, l.Identity())
				}
				c := control.Clone{Host: printable(original.Name), PublicIP: l.Identity(), Boot: printable(etcdkeys.ParseProcess(got.Kvs[0].Value).Boot)}
				if n := noticeOf(c); a.due(pace.Notice{Key: n.Key, Text: "left to " + n.Text}) { // whatever the watch has said
					a.log.WarnContext(ctx, "another host runs with a copy of this node's file: its subnet is left to it",
						"subnet", l.CIDRs(), "host", c.Host, "public_ip", c.PublicIP, "boot", c.Boot, "fix", fixClone)
				}
				continue
			}
			revision = got.Kvs[0].ModRevision
		}
		l.while = append(slices.Clip(l.while), clientv3.Compare(clientv3.ModRevision(key), "=", revision)) // it has not come back
		kept = append(kept, l)
	}
	return kept, nil
}

// fixClone is what to do about a clone.
const fixClone = "stop overlayd on the host that is the copy, remove the node file there, and give it an address of its own"

// checkClone is control.ErrTaken for a record that original, another host with this node's ID, keeps alive, and control.ErrCloned too if
// that host has answered. If that host is gone, the record expires within stays.
func (r *nodeRecord) checkClone(ctx context.Context, kv *mvccpb.KeyValue, original etcdkeys.Record, stays time.Duration) error {
	if r.store.ask(ctx, r.node, r.publicIP, kv) == answered {
		return fmt.Errorf("%w: %w: host %.64q at %s has answered (node ID %.64q)", control.ErrTaken, control.ErrCloned, original.Name, r.publicIP, original.ID)
	}
	return fmt.Errorf("%w: %s belongs to host %.64q, of whose node file this host has a copy (node ID %.64q): remove it and give one of the two another public IP, or wait %s if that host is gone",
		control.ErrTaken, r.publicIP, original.Name, original.ID, stays)
}

// question is what this node has asked a host that has its ID.
type question struct {
	lease    leaseID   // of its key; 0: it could not be written
	revision int64     // of its key; 0: not known
	until    time.Time // when the record of a host that is gone has expired
}

// questionJSON is the value of a question: the record of whoever asks, and its public IP.
type questionJSON struct {
	etcdkeys.Record
	From netip.Addr `json:"from"`
}

// stateAsking is the State in a question.
const stateAsking = "asking"

// life is what is known of a host that was asked.
type life int

const (
	notKnown life = iota // it may yet answer, or its record expire
	answered
	silent // it has not answered, and its record is kept alive all the same
)

// expiryLag is more than etcd takes to delete what has expired.
const expiryLag = 2 * time.Second

// ask returns whether the host lives that wrote the record kv. It asks that host when it is called for the first time. node
// is who asks, and from is its public IP.
func (s *Store) ask(ctx context.Context, node etcdkeys.Record, from netip.Addr, kv *mvccpb.KeyValue) life {
	key := string(kv.Key)
	s.mu.Lock()
	q, asked := s.questions[key]
	s.mu.Unlock()
	switch {
	case !asked:
		q = s.putQuestion(ctx, node, from, key)
		s.mu.Lock()
		s.questions[key] = q
		s.mu.Unlock()
	case q.revision != 0 && kv.ModRevision > q.revision:
		return answered
	case time.Now().After(q.until):
		return silent
	}
	return notKnown
}

// putQuestion writes a question beside a record. If that fails, time tells whether the host lives.
func (s *Store) putQuestion(ctx context.Context, node etcdkeys.Record, from netip.Addr, record string) question {
	node.State = stateAsking
	text, _ := json.Marshal(questionJSON{node, from}) // texts, numbers and a time of this century cannot fail
	q := question{lease: etcdrpc.NewLeaseID(node.ID), until: time.Now().Add(s.cfg.NodeTTL + expiryLag)}
	_, err := s.rpc.Grant(ctx, q.lease, s.cfg.NodeTTL)
	if err == nil {
		var resp *clientv3.TxnResponse
		put := clientv3.OpPut(s.keys.Question(record, q.lease), string(text), clientv3.WithLease(clientv3.LeaseID(q.lease)))
		if resp, err = s.rpc.Txn(ctx, "ask another host with this node's ID", nil, []clientv3.Op{put}, nil); err == nil {
			q.revision = resp.Header.Revision
			return q
		}
	}
	s.log.DebugContext(ctx, "another host with this node's ID is not asked: waiting to see whether its record expires", "err", err)
	s.rpc.Abandon(ctx, q.lease)
	q.lease = 0
	return q
}

// dropQuestions takes back what was asked.
func (s *Store) dropQuestions(ctx context.Context) {
	s.mu.Lock()
	questions := s.questions
	s.questions = map[string]question{}
	s.mu.Unlock()
	for _, q := range questions {
		if q.lease != 0 {
			s.rpc.Abandon(ctx, q.lease)
		}
	}
}
