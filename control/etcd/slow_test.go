package etcd_test

import (
	"crypto/tls"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/overlayd/overlayd/control/etcd"
)

// TestSlowEtcd: an etcd to which no connection can be made within the time of a first one is reached all the same, and an endpoint that
// says nothing delays nobody.
func TestSlowEtcd(t *testing.T) {
	ca := newAuthority(t)
	cert, err := tls.LoadX509KeyPair(ca.issue(t, "server").cert, ca.file+".server.key")
	if err != nil {
		t.Fatal(err)
	}
	hanging, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { hanging.Close() })
	for name, tt := range map[string]struct {
		scheme string
		delay  time.Duration
	}{"plain": {"http://", time.Second}, "TLS": {"https://", 600 * time.Millisecond}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			c.SetConfig(t, []byte(config))
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			cfg := etcd.Config{Prefix: prefix}
			if tt.scheme == "https://" {
				l, cfg.CAFile = tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"h2"}}), ca.file
			}
			far := newProxy(t, serveProxy(t, l, c.socket()).addr())
			far.delay.Store(int64(tt.delay))
			var log syncBuffer
			cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
			for _, others := range [][]string{nil, {tt.scheme + hanging.Addr().String()}} {
				cfg.Endpoints = append(others, tt.scheme+far.addr())
				s, err := etcd.Open(t.Context(), cfg)
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close()
				eventually(t, "an answer", func() bool { _, err = s.Network(t.Context()); return err == nil })
			}
			if text := log.String(); !strings.Contains(text, "etcd is slow") || !strings.Contains(text, far.addr()) {
				t.Errorf("log:\n%s", text)
			}
		})
	}
}
