package probe

import (
	"container/heap"
	"time"
)

// queue has the peers by when the next probe of each is due. It implements heap.Interface.
type queue []entry

type entry struct {
	due  time.Duration
	peer *peer
}

// first returns the peer whose probe is due first, and which probe that is. Of no peers it returns nil.
func (h queue) first() (q *peer, k kind, due time.Duration) {
	if len(h) == 0 {
		return nil, 0, never
	}
	k, due = h[0].peer.next()
	return h[0].peer, k, due
}

// add adds a peer.
func (h *queue) add(q *peer) {
	_, due := q.next()
	heap.Push(h, entry{due, q})
}

// fix puts a peer in its place after what is due of it has changed.
func (h *queue) fix(q *peer) {
	_, (*h)[q.at].due = q.next()
	heap.Fix(h, int(q.at))
}

// remove removes a peer.
func (h *queue) remove(q *peer) { heap.Remove(h, int(q.at)) }

// Len implements heap.Interface.
func (h queue) Len() int { return len(h) }

// Less implements heap.Interface.
func (h queue) Less(i, j int) bool { return h[i].due < h[j].due }

// Swap implements heap.Interface.
func (h queue) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].peer.at, h[j].peer.at = int32(i), int32(j)
}

// Push implements heap.Interface.
func (h *queue) Push(x any) {
	e := x.(entry)
	e.peer.at = int32(len(*h))
	*h = append(*h, e)
}

// Pop implements heap.Interface.
func (h *queue) Pop() any {
	last := len(*h) - 1
	e := (*h)[last]
	(*h)[last] = entry{}
	*h = (*h)[:last]
	e.peer.at = gone
	return e
}

// gone is the place of a peer that is not in the queue any more.
const gone = -1

// gone reports whether the peer was removed: answers to its probes no longer matter.
func (q *peer) gone() bool { return q.at == gone }
