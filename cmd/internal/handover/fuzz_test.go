package handover

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// seeds are messages as they are, and as they are not.
var seeds = []string{
	"", "{}", `{"version":1}`, `{"version":1,"all":true,"networks":["red"]}`, `{"version":2}`, `{"version":1,"networks":"red"}`, "null", `"`, "\x00",
	`{"exports":[{"name":"queue 0 of flannel.1","flags":1,"version":1}],"nonce":"a","start":"2026-01-01T00:00:00Z","leases":[1]}`,
	`{"exports":[{"name":"a"},{"name":"b"}]}`, `{"exports":[null]}`, `{"error":"no"}`, `{"start":"x"}`,
}

// FuzzQuestion: whatever another process asks for, with whatever files, the daemon goes on unless it was asked to end, and answers the next one.
func FuzzQuestion(f *testing.F) {
	for _, s := range seeds {
		f.Add([]byte(s), uint8(len(s)))
	}
	f.Fuzz(func(t *testing.T, question []byte, files uint8) {
		path := filepath.Join(t.TempDir(), "s")
		refuse := errors.New("not now")
		s := Serve(path, slog.New(slog.DiscardHandler), &fakeGiver{refuse: refuse}, owned)
		defer s.Stop()
		tell(t, dial(t, path), question, files)
		if _, err := Ask(path, Question{}); err == nil || err.Error() != refuse.Error() {
			t.Errorf("after %q: %v", question, err)
		}
	})
}

// FuzzAnswer: whatever stands at the socket says, the files that came with it are named and open, or none is left open.
func FuzzAnswer(f *testing.F) {
	for _, s := range seeds {
		f.Add([]byte(s), uint8(len(s)%3))
	}
	f.Fuzz(func(t *testing.T, answer []byte, files uint8) {
		path := filepath.Join(t.TempDir(), "s")
		l, err := net.Listen("unixpacket", path)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		said := make(chan struct{})
		go func() {
			defer close(said)
			if c, err := l.Accept(); err == nil {
				_, _ = c.Read(make([]byte, maxMessage))
				tell(t, c.(*net.UnixConn), answer, files)
			}
		}()
		before := pipes(t)
		exports, err := askFor(path)
		<-said
		if err != nil && len(exports) > 0 {
			t.Errorf("%d files and %v", len(exports), err)
		}
		for _, e := range exports {
			if _, err := e.File.Stat(); err != nil {
				t.Errorf("%q: %v", e.Name, err)
			}
			e.File.Close()
		}
		if n := pipes(t) - before; n > 0 {
			t.Errorf("%d files are left open after %q", n, answer)
		}
	})
}

func dial(t *testing.T, path string) *net.UnixConn {
	t.Helper()
	c, err := net.DialTimeout("unixpacket", path, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	return c.(*net.UnixConn)
}

// tell sends a message with up to three files, which are pipes, and closes the connection.
func tell(t *testing.T, c *net.UnixConn, message []byte, files uint8) {
	defer c.Close()
	var fds []int
	for range files % 4 {
		var ends [2]int
		if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
			t.Error(err)
			return
		}
		unix.Close(ends[1])
		fds = append(fds, ends[0])
	}
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	if _, _, err := c.WriteMsgUnix(message, oob, nil); err != nil && !errors.Is(err, unix.EMSGSIZE) && !errors.Is(err, unix.EPIPE) && !errors.Is(err, io.EOF) {
		t.Logf("send: %v", err)
	}
	for _, fd := range fds {
		unix.Close(fd)
	}
}

// pipes returns how many pipes this process has open at which nobody writes any more.
func pipes(t *testing.T) (n int) {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if info, err := os.Stat("/proc/self/fd/" + e.Name()); err != nil || info.Mode()&os.ModeNamedPipe == 0 {
			continue
		}
		f, err := os.OpenFile("/proc/self/fd/"+e.Name(), os.O_RDONLY|unix.O_NONBLOCK, 0)
		if err != nil {
			continue
		}
		fds := []unix.PollFd{{Fd: int32(f.Fd()), Events: unix.POLLIN}}
		if _, err := unix.Poll(fds, 0); err == nil && fds[0].Revents&unix.POLLHUP != 0 {
			n++
		}
		f.Close()
	}
	return n
}
