package embedded

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
)

const (
	// maxAnswer bounds the answer to one request for keys, in bytes: 25 000 leases. Whoever wants more asks for a part.
	maxAnswer = 8 << 20
	// pageKeys is how many keys are read at a time, so that no more than a page of the largest values is read in vain.
	pageKeys = maxAnswer / maxPut
	// atOnce is how many keys one address may read at once if it asks for them one by one, or a few in one request.
	atOnce = 32
	// reading and sending bound, in bytes, what all clients have together: what is being read, and what waits until its client takes it,
	// there twice.
	reading = maxAnswer
	sending = maxAnswer

	// A client that takes its answer more slowly is closed, so that it keeps no room from others.
	takePatience = 2 * time.Second
	takeRate     = 1 << 20 // bytes a second
)

// answers bounds the memory for what clients read: they may ask for everything, again and again, and take none of it. Of each address one
// large answer is made at a time, or atOnce small ones; the others wait for their turn.
type answers struct {
	reading, sending *semaphore.Weighted
	patience         time.Duration
	find             func(address string) *trackedConn // the connection of a client
	sources          sources

	mu    sync.Mutex
	turns map[netip.Addr]*turn
}

// turn is of one address.
type turn struct {
	*semaphore.Weighted
	users int
}

func newAnswers(patience time.Duration, find func(address string) *trackedConn) *answers {
	return &answers{reading: semaphore.NewWeighted(reading), sending: semaphore.NewWeighted(sending), patience: patience, find: find, turns: map[netip.Addr]*turn{},
		sources: sources{max: maxUnits, all: map[netip.Addr]*source{}, streams: map[*limitedStream]struct{}{}}}
}

// answer is one answer until it waits in the connection of its client. It is in the context of the RPC.
type answer struct {
	units int // that the RPC counts for

	mu   sync.Mutex
	end  func() // nil: there is nothing to give back
	over bool   // the RPC is
}

type answerKey struct{}

type connKey struct{}

// TagRPC implements stats.Handler.
func (a *answers) TagRPC(ctx context.Context, info *stats.RPCTagInfo) context.Context {
	return context.WithValue(ctx, answerKey{}, &answer{units: unitsOf(info.FullMethodName)})
}

// HandleRPC implements stats.Handler: it learns what gRPC has to send.
func (a *answers) HandleRPC(ctx context.Context, s stats.RPCStats) {
	conn, isTracked := ctx.Value(connKey{}).(*trackedConn)
	now, isRPC := ctx.Value(answerKey{}).(*answer)
	switch s := s.(type) {
	case *stats.OutPayload:
		if isTracked {
			conn.unsent.add(s.WireLength)
		}
	case *stats.End:
		if isTracked && isRPC && now.units > 0 {
			a.sources.end(conn, now.units)
		}
		if isRPC {
			now.finish()
		}
	}
}

// TagConn implements stats.Handler.
func (a *answers) TagConn(ctx context.Context, info *stats.ConnTagInfo) context.Context {
	conn := a.find(info.RemoteAddr.String())
	if conn == nil {
		return ctx // a Unix socket: only the owner of the data reaches it
	}
	return context.WithValue(ctx, connKey{}, conn)
}

// HandleConn implements stats.Handler.
func (a *answers) HandleConn(context.Context, stats.ConnStats) {}

// atEnd has end called when the RPC is over, or at once if it is.
func (n *answer) atEnd(end func()) {
	n.mu.Lock()
	if !n.over {
		n.end, end = end, func() {}
	}
	n.mu.Unlock()
	end()
}

func (n *answer) finish() {
	n.mu.Lock()
	end := n.end
	n.over, n.end = true, nil
	n.mu.Unlock()
	if end != nil {
		end()
	}
}

// unary serves a request that reads, when it is its turn. What it takes is given back when the client has taken the answer.
func (a *answers) unary(ctx context.Context, req any, handle grpc.UnaryHandler) (any, error) {
	reads, err := readsOf(req)
	switch {
	case err != nil:
		return nil, err
	case reads == 0:
		return handle(ctx, req)
	}
	leave, err := a.enter(ctx, addressOf(ctx), reads)
	if err != nil {
		return nil, err
	}
	answer, size := any(nil), int64(0)
	if reads < atOnce {
		answer, err = handle(ctx, req)
	} else if answer, size, err = a.large(ctx, req.(*pb.RangeRequest), handle); err == nil {
		leave = func(leave func()) func() { return func() { a.sending.Release(size); leave() } }(leave)
	}
	switch {
	case err != nil && ctx.Err() != nil && reads >= atOnce: // it was read in vain, perhaps again and again
		time.AfterFunc(lossPause, leave)
		return nil, err
	case err != nil:
		leave()
		return nil, err
	}
	untilTaken(ctx, a.patience+time.Duration(size)*time.Second/takeRate, leave)
	return answer, nil
}

// untilTaken has end called when the client has taken its answer, and hangs up if that takes too long.
func untilTaken(ctx context.Context, patience time.Duration, end func()) {
	now, isRPC := ctx.Value(answerKey{}).(*answer)
	conn, isTracked := ctx.Value(connKey{}).(*trackedConn)
	if !isRPC || !isTracked {
		end()
		return
	}
	now.atEnd(func() {
		slow := time.AfterFunc(patience, func() { _ = conn.Close() }) // its error would be about a connection that is dead
		conn.unsent.atRest(func() { slow.Stop(); afterLoss(conn, end) })
	})
}

// lossPause is how long the room of an answer stays taken whose client has hung up: its memory is not free at once.
const lossPause = 200 * time.Millisecond

// afterLoss calls end, later if the connection has ended before its client took what it had asked for.
func afterLoss(conn *trackedConn, end func()) {
	if conn.unsent.isLost() {
		time.AfterFunc(lossPause, end)
		return
	}
	end()
}

// large reads a range page by page, and takes room to send it, which the caller gives back.
func (a *answers) large(ctx context.Context, r *pb.RangeRequest, read grpc.UnaryHandler) (all *pb.RangeResponse, size int64, err error) {
	if !isPaged(r) {
		if err := checkCount(ctx, r, read); err != nil {
			return nil, 0, err
		}
	}
	if err := a.reading.Acquire(ctx, maxAnswer); err != nil {
		return nil, 0, status.FromContextError(err).Err()
	}
	defer a.reading.Release(maxAnswer)
	if all, size, err = readPages(ctx, r, read); err != nil {
		return nil, 0, err
	}
	if err := a.sending.Acquire(ctx, size); err != nil {
		return nil, 0, status.FromContextError(err).Err()
	}
	return all, size, nil
}

// enter waits for the turn of an address, which ends with leave.
func (a *answers) enter(ctx context.Context, from netip.Addr, reads int64) (leave func(), err error) {
	a.mu.Lock()
	t := a.turns[from]
	if t == nil {
		t = &turn{Weighted: semaphore.NewWeighted(atOnce)}
		a.turns[from] = t
	}
	t.users++
	a.mu.Unlock()
	forget := func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if t.users--; t.users == 0 {
			delete(a.turns, from)
		}
	}
	if err := t.Acquire(ctx, reads); err != nil {
		forget()
		return nil, status.FromContextError(err).Err()
	}
	return func() { t.Release(reads); forget() }, nil
}

// addressOf returns whose RPC it is.
func addressOf(ctx context.Context) netip.Addr {
	if p, ok := peer.FromContext(ctx); ok && p.Addr != nil {
		if ap, err := netip.ParseAddrPort(p.Addr.String()); err == nil {
			return ap.Addr().Unmap()
		}
	}
	return netip.Addr{} // of the owner of the data, by a Unix socket
}

// readPages reads all of a range as it was at one moment, or as much as is asked for, and says how many bytes that is.
func readPages(ctx context.Context, r *pb.RangeRequest, read grpc.UnaryHandler) (all *pb.RangeResponse, size int64, err error) {
	for page := cloneRange(r); ; {
		switch {
		case !isPaged(r):
			page.Limit = r.Limit
		case r.Limit <= 0:
			page.Limit = pageKeys
		default:
			page.Limit = min(pageKeys, r.Limit-int64(len(all.GetKvs())))
		}
		got, err := read(ctx, page)
		if err != nil {
			return nil, 0, err
		}
		next, ok := got.(*pb.RangeResponse)
		if !ok {
			return nil, 0, status.Errorf(codes.Internal, "a range is answered by a %T", got)
		}
		for _, kv := range next.Kvs {
			size += int64(len(kv.Key) + len(kv.Value))
		}
		if all == nil {
			all = next
		} else {
			all.Kvs, all.More = append(all.Kvs, next.Kvs...), next.More
		}
		if size > maxAnswer && len(all.Kvs) > 1 {
			return nil, 0, tooLarge(size)
		}
		if len(next.Kvs) == 0 || !next.More || !isPaged(r) || r.Limit > 0 && int64(len(all.Kvs)) >= r.Limit {
			return all, min(size, sending), nil
		}
		page.Key = append(append([]byte(nil), next.Kvs[len(next.Kvs)-1].Key...), 0)
		page.Revision, page.Serializable = all.Header.Revision, true
		if r.Revision > 0 {
			page.Revision = r.Revision
		}
	}
}

// cloneRange copies what a request asks for.
func cloneRange(r *pb.RangeRequest) *pb.RangeRequest {
	return &pb.RangeRequest{Key: r.Key, RangeEnd: r.RangeEnd, Limit: r.Limit, Revision: r.Revision, SortOrder: r.SortOrder, SortTarget: r.SortTarget,
		Serializable: r.Serializable, KeysOnly: r.KeysOnly, CountOnly: r.CountOnly,
		MinModRevision: r.MinModRevision, MaxModRevision: r.MaxModRevision, MinCreateRevision: r.MinCreateRevision, MaxCreateRevision: r.MaxCreateRevision}
}

// checkCount refuses what etcd would read as a whole, if that is too much, before it sorts or filters.
func checkCount(ctx context.Context, r *pb.RangeRequest, read grpc.UnaryHandler) error {
	got, err := read(ctx, &pb.RangeRequest{Key: r.Key, RangeEnd: r.RangeEnd, Revision: r.Revision, CountOnly: true, Serializable: r.Serializable})
	if err != nil {
		return err
	}
	if n := got.(*pb.RangeResponse).GetCount(); n > pageKeys {
		return refusal("%d keys are too many to be sorted, or chosen by their revisions, for a client: want at most %d", n, pageKeys)
	}
	return nil
}

// tooLarge is in the words of gRPC, whose clients would refuse a long answer themselves: overlayd's then ask for less.
func tooLarge(size int64) error {
	return status.Error(codes.ResourceExhausted, fmt.Sprintf("refused: the answer is larger than max (%d vs. %d): ask for fewer keys at a time, by a limit", size, maxAnswer))
}

// isPaged reports whether the keys of a request are asked for in their order, all of them: only then it can be read page by page.
func isPaged(r *pb.RangeRequest) bool {
	inOrder := r.SortOrder == pb.RangeRequest_NONE || r.SortTarget == pb.RangeRequest_KEY && r.SortOrder == pb.RangeRequest_ASCEND
	return inOrder && r.MinModRevision|r.MaxModRevision|r.MinCreateRevision|r.MaxCreateRevision == 0
}

// readsOf returns how many keys a request reads: atOnce if they may be many. A large range is asked for alone.
func readsOf(req any) (keys int64, err error) {
	switch r := req.(type) {
	case *pb.RangeRequest:
		switch {
		case r.CountOnly || len(r.RangeEnd) == 0:
			return 1, nil
		case !isPaged(r) || r.Limit <= 0 || r.Limit >= atOnce/2:
			return atOnce, nil
		}
		return r.Limit, nil
	case *pb.LeaseTimeToLiveRequest:
		if r.Keys {
			return atOnce - 1, nil // one of an address at a time
		}
	case *pb.PutRequest:
		if r.PrevKv {
			return 1, nil
		}
	case *pb.DeleteRangeRequest:
		switch {
		case r.PrevKv && len(r.RangeEnd) > 0:
			return 0, refusal("what a range of keys has cannot be asked for by its deletion: read it before")
		case r.PrevKv:
			return 1, nil
		}
	case *pb.TxnRequest:
		if keys, err = readsOfTxn(r); keys >= atOnce {
			return 0, refusal("a transaction may read %d keys, and no range of more: read them one after the other", atOnce-1)
		}
	}
	return keys, err
}

func readsOfTxn(txn *pb.TxnRequest) (keys int64, err error) {
	for _, op := range slices.Concat(txn.Success, txn.Failure) {
		var n int64
		switch r := op.Request.(type) {
		case *pb.RequestOp_RequestRange:
			n, err = readsOf(r.RequestRange)
		case *pb.RequestOp_RequestPut:
			n, err = readsOf(r.RequestPut)
		case *pb.RequestOp_RequestDeleteRange:
			n, err = readsOf(r.RequestDeleteRange)
		case *pb.RequestOp_RequestTxn:
			n, err = readsOf(r.RequestTxn)
		}
		if keys += n; err != nil || keys >= atOnce {
			return keys, err
		}
	}
	return keys, nil
}
