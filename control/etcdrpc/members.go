package etcdrpc

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane/pace"
)

// A list of endpoints may name servers of two clusters: a member was removed, emptied and started again as a cluster of its own. Each
// cluster has other leases, so that whoever asks both in turn takes hosts that live for gone. So one cluster is chosen, and endpoints of
// others are not used.

const (
	// choiceWaits is how long the first choice of a cluster waits for the other endpoints, once one has answered.
	choiceWaits = 500 * time.Millisecond
	// orphaned is how long others answer, and nobody of the cluster in use, before another one, of fewer than half of the endpoints, takes
	// its place: a server that is started again is back by then.
	orphaned = 10 * time.Minute
)

var (
	errOtherCluster = errors.New("it is of another cluster")
	errLearner      = errors.New("it is a learner, which does not serve clients")
)

// found is what an endpoint has said of itself.
type found struct {
	cluster uint64 // ID; 0: it has not said
	err     error  // why it cannot be used, whatever its cluster is
}

// members is what a Client knows of the servers behind its endpoints.
type members struct {
	log *slog.Logger

	mu      sync.Mutex
	cluster uint64    // ID of the one in use; 0: none is chosen yet
	since   time.Time // from then on others have answered, and nobody of the one in use; zero: that is not so
	notices pace.Notices
	unused  []control.UnusedEndpoint
}

// choose returns the cluster to use, given what the endpoints that answer have said, in their order: the one in use as long as
// one of it serves, and else the one of most endpoints that has one that serves. settled says that no other endpoint is about to answer.
// A cluster 0 may be used with all: nobody has said which there is. ok is false if it is too early to say.
func (m *members) choose(now time.Time, answers []found, endpoints int, settled bool) (cluster uint64, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	count, serves := map[uint64]int{}, map[uint64]bool{}
	for _, a := range answers {
		if a.cluster != 0 {
			count[a.cluster]++
		}
		serves[a.cluster] = serves[a.cluster] || a.err == nil
	}
	var most uint64
	for _, a := range answers { // of equals the first in the list
		if a.cluster != 0 && serves[a.cluster] && (most == 0 || count[a.cluster] > count[most]) {
			most = a.cluster
		}
	}
	switch {
	case m.cluster != 0 && (serves[m.cluster] || most == 0), m.cluster == 0 && most == 0 && !serves[0]:
		m.since = time.Time{} // if nobody else answers either, that says nothing about the one in use
		return m.cluster, true
	case m.since.IsZero():
		m.since = now
	}
	waits, goes := orphaned, 2*count[most] > endpoints
	if m.cluster == 0 {
		waits, goes = choiceWaits, goes || settled
	}
	if !goes && now.Sub(m.since) < waits {
		return m.cluster, m.cluster != 0
	}
	if m.cluster = most; most != 0 {
		m.since = time.Time{}
	}
	return m.cluster, true
}

// why returns why an endpoint is not used while cluster is the one in use; nil: it is.
func (f found) why(cluster uint64) error {
	switch {
	case f.cluster != 0 && cluster != 0 && f.cluster != cluster:
		return fmt.Errorf("%w, %x: the one in use is %x", errOtherCluster, f.cluster, cluster)
	default:
		return f.err
	}
}

// note says which endpoints are not used though they answer. One that does not answer is like one that cannot be reached. Of those that are
// pending it is not known now, as they connect again: what was said before holds.
func (m *members) note(unused map[string]error, pending []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := slices.DeleteFunc(slices.Clone(m.unused), func(u control.UnusedEndpoint) bool { return !slices.Contains(pending, u.Endpoint) })
	for _, endpoint := range slices.Sorted(maps.Keys(unused)) {
		why := unused[endpoint]
		fix := fixOf(why)
		if fix == "" {
			continue
		}
		u := control.UnusedEndpoint{Endpoint: endpoint, Err: why.Error(), Fix: fix, Since: time.Now()}
		for _, before := range m.unused {
			if before.Endpoint == u.Endpoint && before.Err == u.Err {
				u.Since = before.Since
			}
		}
		now = append(now, u)
		if due, _ := m.notices.Due(time.Now(), pace.Notice{Key: endpoint, Text: why.Error()}); len(due) > 0 {
			m.log.Warn("an endpoint of etcd is not used", "endpoint", endpoint, "err", why, "fix", fix)
		}
	}
	slices.SortFunc(now, func(a, b control.UnusedEndpoint) int { return cmp.Compare(a.Endpoint, b.Endpoint) })
	m.unused = now
}

// list returns the endpoints that answer and are not used.
func (m *members) list() []control.UnusedEndpoint {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.unused)
}

// fixOf says what to do about an endpoint that is not used.
func fixOf(why error) string {
	switch {
	case errors.Is(why, errOtherCluster):
		return "remove it from --etcd-endpoints, or make it a member of the cluster in use; if its cluster is the right one, remove the others and restart"
	case errors.Is(why, errLearner):
		return "promote it with `etcdctl member promote`, or remove it from --etcd-endpoints"
	}
	return ""
}

// isLearner reports whether an etcd refused a call because it is a learner.
func isLearner(err error) bool {
	return err != nil && errors.Is(rpctypes.Error(err), rpctypes.Error(rpctypes.ErrGRPCNotSupportedForLearner))
}
