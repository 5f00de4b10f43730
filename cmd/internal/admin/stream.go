package admin

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"time"
)

// Stream is an answer that goes on until one of the two sides ends it. Its Read may wait.
type Stream struct {
	io.Reader
	conn *net.UnixConn
}

// Stream asks for a route that answers for any time. ctx bounds the question only.
func (c *Client) Stream(ctx context.Context, path string) (*Stream, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://overlayd"+path, nil)
	if err != nil {
		return nil, err
	}
	conn, err := new(net.Dialer).DialContext(ctx, "unix", c.path)
	if err != nil {
		return nil, c.explain(err)
	}
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	answer, err := ask(conn, r)
	if err != nil {
		conn.Close()
		return nil, c.explain(err)
	}
	if answer.StatusCode != http.StatusOK {
		defer conn.Close()
		return nil, c.refusal(answer)
	}
	return &Stream{answer.Body, conn.(*net.UnixConn)}, nil
}

// ask writes a request and reads the header of the answer.
func ask(conn net.Conn, r *http.Request) (*http.Response, error) {
	if err := conn.SetDeadline(time.Now().Add(answerTimeout)); err != nil {
		return nil, err
	}
	if err := r.Write(conn); err != nil {
		return nil, err
	}
	answer, err := http.ReadResponse(bufio.NewReader(conn), r)
	if err != nil {
		return nil, err
	}
	return answer, conn.SetDeadline(time.Time{})
}

// Stop tells the daemon that no more is wanted. Read still returns what it sends then.
func (s *Stream) Stop() error { return s.conn.CloseWrite() }

// Close ends the stream.
func (s *Stream) Close() error { return s.conn.Close() }
