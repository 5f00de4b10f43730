package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/cmd/internal/status"
	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane/pace"
)

// The errors of a Client, each of which has another next step.
var (
	ErrNoDaemon = errors.New("no overlayd answers")
	ErrNoRight  = errors.New("no right to use the admin socket")
	ErrVersion  = errors.New("the overlayd that runs is of another version")
	ErrAnswer   = errors.New("the answer of the admin socket cannot be used")
	ErrRequest  = errors.New("the daemon refuses the request")
	ErrForRoot  = errors.New("only root may do this")
	ErrNotNow   = errors.New("the daemon cannot do this")
)

const (
	// maxAnswer bounds what a Client reads, in bytes: a Server's largest answer has half of it (status.Bounded).
	maxAnswer     = 8 << 20
	maxRefusal    = 512
	answerTimeout = 10 * time.Second
)

// Client asks a daemon at its admin socket. It keeps no connection. Its methods may be called from several goroutines.
type Client struct {
	path string
	http http.Client
}

// NewClient returns a Client of the socket at path (Path, PathIn).
func NewClient(path string) *Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}
	return &Client{path: path, http: http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true, ResponseHeaderTimeout: answerTimeout}}}
}

// Status returns how the daemon is.
func (c *Client) Status(ctx context.Context) (d status.Daemon, err error) {
	return d, c.getJSON(ctx, "/v1/status", &d, &d.V)
}

const (
	awaitPeriod = 250 * time.Millisecond // how often Await asks
	firstAnswer = time.Second            // how long it waits for the first answer, even if its caller has less patience
)

// Await returns the status once the daemon is healthy, or the last answer when the time is over. A daemon that does not run
// may start.
func (c *Client) Await(ctx context.Context, patience time.Duration) (status.Daemon, error) {
	within, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	first, cancelFirst := context.WithTimeout(ctx, max(patience, firstAnswer))
	defer cancelFirst()
	d, err := c.Status(first)
	for !settled(d, err) && pace.Sleep(within, awaitPeriod, nil) {
		now, nowErr := c.Status(within)
		if within.Err() != nil { // it was cut off, and says less than the answer before
			break
		}
		d, err = now, nowErr
	}
	return d, err
}

// settled reports whether Await need not ask again.
func settled(d status.Daemon, err error) bool {
	return errors.Is(err, ErrNoRight) || errors.Is(err, ErrVersion) || err == nil && d.Verdict.State == status.Healthy
}

// Peers returns the peers of each network: those that name finds (status.FindPeers), or all of them if it is empty.
func (c *Client) Peers(ctx context.Context, name string) (p status.PeerList, err error) {
	query := ""
	if name != "" {
		query = "?peer=" + url.QueryEscape(name)
	}
	return p, c.getJSON(ctx, "/v1/peers"+query, &p, &p.V)
}

// SetLogLevel sets that level, for root.
func (c *Client) SetLogLevel(ctx context.Context, level string) error {
	_, err := c.read(ctx, http.MethodPut, "/v1/loglevel", level)
	return err
}

// Guard returns whether the guard is "on" or "off". If to is one of these it is switched to that, for root.
func (c *Client) Guard(ctx context.Context, to string) (string, error) {
	method := http.MethodPut
	if to == "" {
		method = http.MethodGet
	}
	text, err := c.read(ctx, method, "/v1/guard", to)
	return strings.TrimSpace(string(text)), err
}

// getJSON reads an answer of a known version.
func (c *Client) getJSON(ctx context.Context, path string, to any, v *int) error {
	text, err := c.read(ctx, http.MethodGet, path, "")
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, to); err != nil {
		var head struct{ V int }
		if json.Unmarshal(text, &head) != nil || head.V == status.Version || head.V == 0 {
			return fmt.Errorf("%w: %s of %s is not a status: %w", ErrAnswer, path, c.path, err)
		}
		*v = head.V
	}
	switch *v {
	case status.Version:
		return nil
	case 0:
		return fmt.Errorf(`%w: %s of %s has no "v"`, ErrAnswer, path, c.path)
	}
	return fmt.Errorf("%w: it speaks version %d of the status, and this program version %d", ErrVersion, *v, status.Version)
}

// read returns an answer of bounded length.
func (c *Client) read(ctx context.Context, method, path, body string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	r, err := c.do(ctx, method, path, body)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	var text bytes.Buffer
	n, err := text.ReadFrom(io.LimitReader(r, maxAnswer+1))
	switch {
	case n > maxAnswer:
		return nil, fmt.Errorf("%w: %s of %s has more than %d MB", ErrAnswer, path, c.path, maxAnswer>>20)
	case err != nil:
		return nil, fmt.Errorf("%w: %s of %s ends after %d bytes: %w", ErrAnswer, path, c.path, n, err)
	}
	return text.Bytes(), nil
}

// do returns the body of an answer with status 200.
func (c *Client) do(ctx context.Context, method, path, body string) (io.ReadCloser, error) {
	r, err := http.NewRequestWithContext(ctx, method, "http://overlayd"+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	answer, err := c.http.Do(r)
	if err != nil {
		return nil, c.explain(err)
	}
	if answer.StatusCode == http.StatusOK {
		return answer.Body, nil
	}
	defer answer.Body.Close()
	return nil, c.refusal(answer)
}

// explain says why there is no answer.
func (c *Client) explain(err error) error {
	if u := new(url.Error); errors.As(err, &u) {
		err = u.Err // without the URL, which says nothing
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: there is no %s", ErrNoDaemon, c.path)
	case errors.Is(err, unix.ECONNREFUSED):
		return fmt.Errorf("%w: nobody listens at %s", ErrNoDaemon, c.path)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w %s", ErrNoRight, c.path)
	}
	return fmt.Errorf("%w: ask %s: %w", ErrAnswer, c.path, err)
}

// refusal is an answer that is not 200.
func (c *Client) refusal(answer *http.Response) error {
	text, _ := io.ReadAll(io.LimitReader(answer.Body, maxRefusal)) // half of it is better than nothing
	said := control.Printable(strings.TrimSpace(string(text)), maxRefusal)
	switch answer.StatusCode {
	case http.StatusNotFound:
		return fmt.Errorf("%w: the one at %s does not know %s", ErrVersion, c.path, answer.Request.URL.Path)
	case http.StatusForbidden:
		return fmt.Errorf("%w: %s", ErrForRoot, said)
	case http.StatusBadRequest:
		return fmt.Errorf("%w: %s", ErrRequest, said)
	case http.StatusConflict, http.StatusServiceUnavailable:
		return fmt.Errorf("%w: %s", ErrNotNow, said)
	}
	return fmt.Errorf("%w: %s: %s", ErrAnswer, answer.Status, said)
}
