package tap

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"os"
	"time"

	"github.com/overlayd/overlayd/cmd/internal/stream"
	"github.com/overlayd/overlayd/dataplane/capture"
)

const (
	pollPeriod    = 5 * time.Millisecond // between looks at the rings, which tell nobody
	namesPeriod   = 10 * time.Second     // between looks at the names of the peers
	batch         = 128 << 10            // bytes
	writePatience = time.Minute          // with a client that reads nothing
	endPatience   = 2 * time.Second      // with one that is to get the last
)

// errGone says that nobody reads what is written.
var errGone = errors.New("the client is gone")

// session moves packets from a capture to a client.
type session struct {
	*Server
	to      http.ResponseWriter
	control *http.ResponseController
	capture *capture.Capture
	left    int // packets that are still wanted; 0: all, negative: none any more
	names   stream.Names

	buf     []byte
	packets int
	lost    uint64    // as the client was told
	named   time.Time // when it was told the names
}

// run writes until ctx ends or the capture does. It returns why it ends, nil if the client wants no more.
func (s *session) run(ctx context.Context, hello stream.Hello) error {
	s.buf = hello.Append(nil)
	tick := time.NewTicker(pollPeriod)
	defer tick.Stop()
	for {
		more, err := s.step(writePatience)
		switch {
		case err != nil:
			return err
		case s.left < 0:
			return s.end("")
		case more && ctx.Err() == nil:
			continue
		}
		select {
		case <-ctx.Done():
			return s.end("")
		case <-s.capture.Done():
			if err := s.end(capture.ErrEnded.Error()); err != nil {
				return err
			}
			return capture.ErrEnded
		case <-tick.C:
		}
	}
}

// step writes one batch, and reports whether there may be more.
func (s *session) step(patience time.Duration) (more bool, err error) {
	if now := time.Now(); now.Sub(s.named) >= namesPeriod {
		s.named = now
		s.buf = s.Server.update(s.names, s.buf)
	}
	from := len(s.buf)
	s.buf = s.capture.Append(s.buf, from+batch)
	more = len(s.buf)-from >= batch
	limit := math.MaxInt
	if s.left > 0 {
		limit = s.left
	}
	packets, n := capture.Limit(s.buf[from:], limit)
	s.buf = s.buf[:from+len(packets)]
	s.packets += n
	if s.left > 0 {
		if s.left -= n; s.left == 0 {
			s.left = -1
		}
	}
	if lost := s.capture.Lost(); lost != s.lost {
		s.lost = lost
		s.buf = capture.AppendLost(s.buf, lost)
	}
	return more, s.flush(patience)
}

// update appends the names that a client does not know yet.
func (s *Server) update(known stream.Names, b []byte) []byte {
	return known.Update(b, namesOf(s.Networks()))
}

// flush writes what there is.
func (s *session) flush(patience time.Duration) error {
	if len(s.buf) == 0 {
		return nil
	}
	defer func() { s.buf = s.buf[:0] }()
	err := s.control.SetWriteDeadline(time.Now().Add(patience))
	if err == nil {
		_, err = s.to.Write(s.buf)
	}
	if err == nil {
		err = s.control.Flush()
	}
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("the client has read nothing for %s", patience)
	case err != nil:
		return errGone
	}
	return nil
}

// end writes what was captured so far, and why the stream ends.
func (s *session) end(why string) error {
	s.capture.Close()
	for more := s.left >= 0; more; {
		var err error
		if more, err = s.step(endPatience); err != nil {
			return err
		}
		more = more && s.left >= 0
	}
	s.buf = capture.AppendText(s.buf, capture.End, why)
	return s.flush(endPatience)
}
