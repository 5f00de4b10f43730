package kube

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane/pace"
)

// pageSize is how many Nodes a list asks for at once, if the server cannot stream
// them: 250 real ones are 10 MB when decoded.
const pageSize = 250

// retry is how a watch that fails is tried again: within 0.6 s, so that with dialTimeout a
// server is found well within 2 s of its return, and with enough chance in it that
// thousands of nodes do not come at once.
func retry() *wait.Backoff {
	return &wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 10, Cap: 400 * time.Millisecond}
}

// Watch implements control.Store. It keeps to the families that the network config had
// when Watch was called.
func (s *Store) Watch(ctx context.Context) <-chan control.Update {
	r := s.watchReader(ctx)
	t := newNodeTable(r)
	t.seen = func(n *corev1.Node) { s.noteAnswer(ctx, n, nil) }
	log := klog.New(newSink(s.cfg.Log.Handler()))
	reflector := cache.NewReflectorWithOptions(s.listWatch(ctx, r), &corev1.Node{}, t,
		cache.ReflectorOptions{Logger: &log, Name: "nodes", Backoff: retry()})
	reflector.WatchListPageSize = pageSize
	out := make(chan control.Update)
	end := s.noteWatch(t)
	go func() { // its end is seen by the closed channel
		defer close(out)
		defer end()
		var group wait.Group
		defer group.Wait()
		group.StartWithContext(klog.NewContext(ctx, log), reflector.RunWithContext)
		t.send(ctx, out)
	}()
	return out
}

// watchReader returns the reader of a watch.
func (s *Store) watchReader(ctx context.Context) reader {
	network, err := s.Network(ctx)
	if err != nil {
		network = control.Network{EnableIPv4: true, EnableIPv6: true}
	}
	r := s.reader(network)
	r.ignored, r.isOwn, r.wanted, r.isReady = s.ignored(ctx), s.isOwn, s.wanted, s.isReady
	return r
}

// isOwn reports whether the own Node has this name.
func (s *Store) isOwn(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return name == s.node
}

// isReady reports whether MarkReady was called.
func (s *Store) isReady() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ready
}

// wanted returns the lease that n, the own Node, has to publish now, or why it can have none. ok is false before the first Acquire.
func (s *Store) wanted(n *corev1.Node) (l control.Lease, ok bool, err error) {
	s.mu.Lock()
	network, published := s.network, s.published
	s.mu.Unlock()
	if published == (control.Lease{}) {
		return control.Lease{}, false, nil
	}
	l, err = s.reader(network).ownOf(n, network, published)
	return l, true, err
}

// want makes published the lease that the own Node has to publish. All watches judge the Node by it again, because a watch may have seen
// the Node before.
func (s *Store) want(network control.Network, published control.Lease) {
	s.mu.Lock()
	s.network, s.published = network, published
	watches := slices.Collect(maps.Keys(s.watches))
	s.mu.Unlock()
	for _, t := range watches {
		t.judgeOwn()
	}
}

// seen returns the own Node, trimmed, as a watch has seen it last; nil: none has, or it has no lease.
func (s *Store) seen() *corev1.Node {
	s.mu.Lock()
	name, watches := s.node, slices.Collect(maps.Keys(s.watches))
	s.mu.Unlock()
	for _, t := range watches {
		if n := t.own(name); n != nil {
			return n
		}
	}
	return nil
}

// noteWatch notes a watch until it calls end.
func (s *Store) noteWatch(t *nodeTable) (end func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.watches == nil {
		s.watches = map[*nodeTable]struct{}{}
	}
	s.watches[t] = struct{}{}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.watches, t)
	}
}

// ignored returns what logs that facts of a Node cannot be read, once while they stay the same.
func (s *Store) ignored(ctx context.Context) func(string, error) {
	var notices pace.Notices
	return func(node string, err error) {
		due, more := notices.Due(time.Now(), pace.Notice{Key: node, Text: err.Error()})
		for range due {
			s.cfg.Log.WarnContext(ctx, "what a node says of itself is ignored", "node", quote(node), "err", err)
		}
		if more > 0 {
			s.cfg.Log.WarnContext(ctx, "what a node says of itself is ignored: and more", "count", more)
		}
	}
}

// send passes on what the table takes in until ctx ends.
func (t *nodeTable) send(ctx context.Context, out chan<- control.Update) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.wake:
		}
		u, ok := t.take()
		if !ok {
			continue
		}
		select {
		case <-ctx.Done():
			return
		case out <- u:
		}
	}
}

// listWatch is how the Reflector reads Nodes: trimmed as soon as they are decoded, and
// with failures logged once a minute and not once an attempt, and lists not one after the other.
func (s *Store) listWatch(all context.Context, r reader) *cache.ListWatch {
	pause, fits := newPauses(), int64(pageSize)
	lists, watches := &failures{log: s.cfg.Log}, &failures{log: s.cfg.Log} // a service account may have one right and not the other
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			if o.ResourceVersion == "0" {
				o.ResourceVersion = "" // from 0 the server's answer comes in one piece, whatever the limit
			}
			if o.Continue == "" && !pause.wait(all) { // ctx has no end
				return nil, all.Err()
			}
			list, err := s.listNodes(ctx, o, &fits)
			lists.note(ctx, "list nodes", err)
			s.noteAnswer(ctx, list, err)
			if err != nil {
				return nil, err
			}
			pause.listed = time.Now()
			for i := range list.Items {
				list.Items[i] = *r.trim(&list.Items[i])
			}
			return list, nil
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			streams := o.SendInitialEvents != nil && *o.SendInitialEvents // a list
			if streams && !pause.wait(ctx) || !streams && !pause.follow(ctx) {
				return nil, ctx.Err()
			}
			err := s.checkVersion(ctx, o.ResourceVersion)
			var w watch.Interface
			if err == nil {
				w, err = s.api.watchNodes(ctx, o)
			}
			if streams && err == nil {
				pause.listed = time.Now()
			}
			watches.note(ctx, "watch nodes", err)
			s.noteAnswer(ctx, nil, err)
			return w, err
		},
	}
}

// pauses keep one list of all Nodes from following another at once. client-go lists again without a pause if a stream
// ends before its list is complete, as a proxy may end each. Lists that fail do not count: retry is for those.
type pauses struct {
	listed   time.Time // when the last list succeeded; zero: none has since the last wait
	again    pace.Backoff
	followed time.Time // when the last stream of changes was asked for
	rejoin   pace.Backoff
}

// streamsApart is how long after a stream of changes another one has no reason to wait.
const streamsApart = time.Second

// follow waits until there may be a stream of changes: client-go asks for another one without a pause if each is cut at once. It returns
// false if ctx ends first.
func (p *pauses) follow(ctx context.Context) bool {
	soon := time.Since(p.followed) < streamsApart
	if !soon {
		p.rejoin.Reset()
	}
	ok := !soon || pace.Sleep(ctx, p.rejoin.Next(), nil)
	p.followed = time.Now()
	return ok
}

// listsApart is how long after a list another one has no reason to wait.
const listsApart = 10 * time.Second

// newPauses returns the pauses of one watch.
func newPauses() *pauses {
	const low, high = 50 * time.Millisecond, 2 * time.Second
	return &pauses{again: pace.Backoff{Low: low, High: high}, rejoin: pace.Backoff{Low: low, High: high}}
}

// wait waits until there may be a list. It returns false if ctx ends first.
func (p *pauses) wait(ctx context.Context) bool {
	listed := p.listed
	p.listed = time.Time{}
	switch {
	case listed.IsZero():
		return true
	case time.Since(listed) >= listsApart:
		p.again.Reset()
		return true
	}
	return pace.Sleep(ctx, p.again.Next(), nil)
}

// checkVersion returns 410 Gone for a version that the server has not reached. That is so if
// its etcd was wiped or restored: the server would accept the watch, and send nothing until
// the version is reached.
func (s *Store) checkVersion(ctx context.Context, version string) error {
	want, err := strconv.ParseUint(version, 10, 64)
	if err != nil || want == 0 {
		return nil // the watch begins with a list
	}
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	list, err := s.api.nodes(call, metav1.ListOptions{Limit: 1})
	if err != nil {
		return err
	}
	if now, err := strconv.ParseUint(list.ResourceVersion, 10, 64); err == nil && now < want {
		return apierrors.NewResourceExpired(fmt.Sprintf("nodes are at version %d, and were at %d", now, want))
	}
	return nil
}
