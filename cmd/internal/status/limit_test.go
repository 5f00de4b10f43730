package status

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestManyConnections: a thousand clients that ask nothing, and one that never reads, keep nobody from being answered,
// and the daemon holds no more than maxConns connections.
func TestManyConnections(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	big := strings.Repeat("x", 8<<20)
	h := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, big) })
	limit := newLimited(l)
	defer Serve(limit, h, func(err error) { t.Error(err) })()
	var idle []net.Conn
	defer func() {
		for _, c := range idle {
			c.Close()
		}
	}()
	for i := range 1000 {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		idle = append(idle, c)
		if i == 500 { // never reads
			fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		}
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}
	resp, err := client.Get("http://" + l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(resp.Body); err != nil || len(b) != len(big) {
		t.Errorf("%d bytes: %v", len(b), err)
	}
	resp.Body.Close()
	limit.mu.Lock()
	open := len(limit.open)
	limit.mu.Unlock()
	if open > maxConns {
		t.Errorf("%d connections are open", open)
	}
	if err := idle[0].SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(idle[0]).ReadByte(); err == nil {
		t.Error("the oldest connection is open still")
	}
}
