package handover

import (
	"errors"
	"net"
	"path/filepath"
	"testing"
)

// TestAskerHasGone: a daemon that was stopped (SIGSTOP) while somebody asked, and goes on when that one waits no more, gives nothing away: nobody
// would forward any more.
func TestAskerHasGone(t *testing.T) {
	t.Parallel()
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "socket"), Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, goes := range []bool{true, false} {
		asker, err := net.Dial("unixpacket", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer asker.Close()
		if _, err := asker.Write([]byte(`{"version":1}`)); err != nil {
			t.Fatal(err)
		}
		if goes {
			asker.Close()
		}
		c, err := l.AcceptUnix()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		s := &Server{giver: &fakeGiver{}, patience: patience}
		given, err := s.answer(c)
		if given == goes || errors.Is(err, errGone) != goes {
			t.Errorf("goes %v: given %v, %v", goes, given, err)
		}
	}
}

// TestLostAnswer: a daemon whose answer could not be delivered knows.
func TestLostAnswer(t *testing.T) {
	g := &fakeGiver{files: 1, asked: make(chan struct{})}
	path, _, _ := served(t, g)
	g.mu.Lock() // Give waits until the other one has gone
	c, err := net.Dial("unixpacket", path)
	if err != nil {
		t.Fatal(err)
	}
	c.Write([]byte(`{"version":1}`))
	<-g.asked
	c.Close()
	g.mu.Unlock()
	if err := <-g.given; err == nil {
		t.Error("the answer arrived")
	}
	g.outs[0].Close()
}
