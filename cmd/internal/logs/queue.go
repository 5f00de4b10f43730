package logs

import (
	"bytes"
	"io"
	"os"
	"sync"
	"time"
)

const (
	// patience is how long whoever logs waits until the line is written. Whatever is logged is then in the log if the process ends at once.
	patience = 100 * time.Millisecond
	// room bounds the lines that wait, in bytes: some 300 lines.
	room = 64 << 10
)

// Stderr is the standard error of this process. It stays as it is: other processes share it, and would notice if it became non-blocking.
var Stderr = NewQueue(os.Stderr)

// Queue writes to a writer which may block, such as a pipe that is full because its reader hangs. Nobody waits long for that: lines
// are queued meanwhile, and those that do not fit are lost, which is counted.
type Queue struct {
	to io.Writer

	mu      sync.Mutex
	lines   []*line // in their order; the first is being written
	size    int     // of lines, in bytes
	blocked time.Time
}

type line struct {
	text    []byte
	written chan struct{} // closed once it is written, or cannot be
}

// NewQueue returns a queue in front of a writer.
func NewQueue(to io.Writer) *Queue { return &Queue{to: to} }

// Write implements io.Writer. It returns no error: what cannot be written is counted.
func (q *Queue) Write(b []byte) (int, error) {
	if l := q.add(b); l != nil && !l.await(patience) {
		q.mu.Lock()
		if len(q.lines) > 0 && q.blocked.IsZero() {
			q.blocked = time.Now()
		}
		q.mu.Unlock()
	}
	return len(b), nil
}

// add queues b. It returns the line to wait for, or nil if the caller should not wait.
func (q *Queue) add(b []byte) *line {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.lines) > 0 && q.size+len(b) > room {
		lost.Add(1)
		return nil
	}
	l := &line{bytes.Clone(b), make(chan struct{})}
	q.lines, q.size = append(q.lines, l), q.size+len(b)
	if len(q.lines) == 1 {
		go q.drain()
	}
	if !q.blocked.IsZero() {
		return nil
	}
	return l
}

// drain writes lines until there are none.
func (q *Queue) drain() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.lines) > 0 {
		l := q.lines[0]
		q.mu.Unlock()
		_, err := q.to.Write(l.text)
		q.mu.Lock()
		if err != nil {
			lost.Add(1)
		}
		q.lines, q.size = q.lines[1:], q.size-len(l.text)
		close(l.written)
	}
	q.blocked = time.Time{}
}

// await reports whether the line is written within limit.
func (l *line) await(limit time.Duration) bool {
	select {
	case <-l.written:
		return true
	case <-time.After(limit):
		return false
	}
}

// Flush waits until all lines are written, at most for limit.
func (q *Queue) Flush(limit time.Duration) {
	q.mu.Lock()
	lines := q.lines
	q.mu.Unlock()
	if len(lines) > 0 {
		lines[len(lines)-1].await(limit)
	}
}

// Blocked returns since when the writer takes nothing; zero if it does.
func (q *Queue) Blocked() time.Time {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.blocked
}
