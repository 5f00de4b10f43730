package embedded_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/overlayd/overlayd/control/etcd/embedded"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func freeURL(t *testing.T) string { return "http://" + embedded.FreeAddress(t) }

func start(t *testing.T, cfg embedded.Config) *embedded.Server {
	t.Helper()
	cfg.NoFsync = true
	begin := time.Now()
	s, err := embedded.Start(t.Context(), cfg)
	if err != nil {
		t.Fatalf("Start: %v", err)
	}
	t.Logf("ready after %s", time.Since(begin))
	t.Cleanup(func() { s.Stop() })
	return s
}

func client(t *testing.T, url string) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{url}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// TestGone: a server notices that its data directory is not there any more, or another one.
func TestGone(t *testing.T) {
	for name, change := range map[string]func(dir string) error{
		"nothing": func(string) error { return nil },
		"removed": os.RemoveAll,
		"emptied": func(dir string) error { return os.RemoveAll(filepath.Join(dir, "member")) },
		"replaced": func(dir string) error {
			return errors.Join(os.CopyFS(dir+".copy", os.DirFS(dir)), os.Rename(dir, dir+".old"), os.Rename(dir+".copy", dir))
		},
	} {
		dir := filepath.Join(t.TempDir(), "etcd")
		s := start(t, embedded.Config{Dir: dir, ListenClient: "unix://" + filepath.Join(t.TempDir(), "etcd.sock")})
		if err := s.Gone(); err != nil {
			t.Errorf("%s, before: %v", name, err)
		}
		if err := change(dir); err != nil {
			t.Fatal(err)
		}
		if err := s.Gone(); errors.Is(err, embedded.ErrGone) != (name != "nothing") {
			t.Errorf("%s: %v", name, err)
		}
		s.Stop()
	}
}

func TestStartPutStopRestartElsewhere(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made", "by", "start")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	s := start(t, embedded.Config{Dir: dir, ListenClient: freeURL(t)})
	c := client(t, s.URLs()[0])
	if _, err := c.Put(ctx, "k", "v"); err != nil {
		t.Fatal(err)
	}
	// An open watch is what makes etcd's own graceful stop hang.
	watch := c.Watch(ctx, "k", clientv3.WithCreatedNotify())
	<-watch
	begin := time.Now()
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begin); took > time.Second {
		t.Errorf("Stop with an open watch took %s, want within 1s", took)
	} else {
		t.Logf("stopped after %s", took)
	}
	if err := s.Stop(); err != nil {
		t.Errorf("second Stop: %v", err)
	}

	socket := filepath.Join(t.TempDir(), "etcd.sock")
	s = start(t, embedded.Config{Dir: dir, ListenClient: "unix://" + socket})
	got, err := client(t, s.URLs()[0]).Get(ctx, "k")
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Kvs) != 1 || string(got.Kvs[0].Value) != "v" {
		t.Errorf("after a restart on another address: got %v, want v", got.Kvs)
	}
}

func TestStartErrorsNameFieldAndValue(t *testing.T) {
	used, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer used.Close()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	inUse := t.TempDir()
	start(t, embedded.Config{Dir: inUse, ListenClient: freeURL(t)})
	tests := []struct {
		name string
		cfg  embedded.Config
		want []string
	}{
		{"port in use", embedded.Config{Dir: t.TempDir(), ListenClient: "http://" + used.Addr().String()},
			[]string{"listen address", used.Addr().String(), "in use"}},
		{"foreign address", embedded.Config{Dir: t.TempDir(), ListenClient: "http://192.0.2.1:2379"},
			[]string{"listen address", "192.0.2.1:2379", "not an address of this host"}},
		{"no directory", embedded.Config{}, []string{"data directory is empty"}},
		{"file as directory", embedded.Config{Dir: file}, []string{"data directory", file}},
		{"directory in use", embedded.Config{Dir: inUse}, []string{"data directory", inUse, "in use by another process"}},
		{"https", embedded.Config{Dir: t.TempDir(), ListenClient: "https://127.0.0.1:1"}, []string{"listen address", "https://127.0.0.1:1", "no certificates"}},
		{"no port", embedded.Config{Dir: t.TempDir(), ListenClient: "http://127.0.0.1"}, []string{"listen address", "http://127.0.0.1"}},
		{"path", embedded.Config{Dir: t.TempDir(), ListenClient: "http://127.0.0.1:1/x"}, []string{"listen address", "/x"}},
		{"no URL", embedded.Config{Dir: t.TempDir(), ListenClient: "127.0.0.1:2379"}, []string{"listen address", "127.0.0.1:2379"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, err := embedded.Start(t.Context(), tt.cfg)
			if err == nil {
				s.Stop()
				t.Fatal("no error")
			}
			for _, w := range tt.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("error %q does not contain %q", err, w)
				}
			}
		})
	}
}

func TestUnspecifiedAddressIsAdvertisedAsTheHosts(t *testing.T) {
	_, port, _ := net.SplitHostPort(embedded.FreeAddress(t))
	port = ":" + port
	s := start(t, embedded.Config{Dir: t.TempDir(), ListenClient: "http://0.0.0.0" + port})
	var loopback bool
	for _, u := range s.URLs() {
		if strings.Contains(u, "0.0.0.0") {
			t.Errorf("advertised %s, which nobody can dial", u)
		}
		loopback = loopback || u == "http://127.0.0.1"+port
	}
	if !loopback {
		t.Errorf("advertised %v, want http://127.0.0.1%s among them", s.URLs(), port)
	}
}

func TestDamagedDataIsAnError(t *testing.T) {
	dir := t.TempDir()
	s := start(t, embedded.Config{Dir: dir, ListenClient: freeURL(t)})
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	db := filepath.Join(dir, "member", "snap", "db")
	if err := os.WriteFile(db, []byte(strings.Repeat("junk", 4096)), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := embedded.Start(t.Context(), embedded.Config{Dir: dir, ListenClient: freeURL(t), NoFsync: true})
	if err == nil {
		s.Stop()
		t.Fatal("no error")
	}
	if !strings.Contains(err.Error(), dir) {
		t.Errorf("error %q does not name the directory %s", err, dir)
	}
}

func Example() {
	dir, err := os.MkdirTemp("", "overlayd-etcd")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	s, err := embedded.Start(context.Background(), embedded.Config{Dir: dir, ListenClient: "unix://" + filepath.Join(dir, "sock")})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer s.Stop()
	fmt.Println("join with --etcd-endpoints", strings.HasPrefix(s.URLs()[0], "unix://"))
	// Output: join with --etcd-endpoints true
}
