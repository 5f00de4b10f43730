//go:build kube

package kube_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"k8s.io/client-go/kubernetes"

	"github.com/overlayd/overlayd/control/etcd/embedded"
	"github.com/overlayd/overlayd/control/kube/kubetest"
)

// apiServer is the API server of all tests of the package, and its etcd.
type apiServer struct {
	*kubetest.Server
	client  kubernetes.Interface
	store   *embedded.Server
	etcd    *clientv3.Client // of store
	process *exec.Cmd
	log     io.Writer
}

// shared is set by TestMain alone.
var shared *apiServer

func TestMain(m *testing.M) {
	if os.Getenv(asProbe) != "" {
		os.Exit(probe())
	}
	os.Exit(withServer(m))
}

func withServer(m *testing.M) int {
	dir, err := os.MkdirTemp("", "overlayd-kube-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	shared, err = newAPIServer(dir)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		if log, err := os.ReadFile(filepath.Join(dir, "kube-apiserver.log")); err == nil {
			os.Stderr.Write(log[max(0, len(log)-4000):])
		}
		return 1
	}
	defer shared.close()
	return m.Run()
}

func newAPIServer(dir string) (*apiServer, error) {
	ports, err := freePorts(2)
	if err != nil {
		return nil, err
	}
	s := &apiServer{}
	s.store, err = embedded.Start(context.Background(), embedded.Config{Dir: filepath.Join(dir, "etcd"),
		ListenClient: "http://" + ports[0].String(), NoFsync: true})
	if err != nil {
		return nil, err
	}
	if s.etcd, err = clientv3.New(clientv3.Config{Endpoints: s.store.URLs(), Logger: zap.NewNop()}); err != nil {
		return nil, err
	}
	if s.Server, err = kubetest.New(dir, s.store.URLs()[0], ports[1]); err != nil {
		return nil, err
	}
	if s.client, err = s.Client(nil); err != nil {
		return nil, err
	}
	if s.log, err = os.Create(filepath.Join(dir, "kube-apiserver.log")); err != nil {
		return nil, err
	}
	return s, s.start()
}

// start starts the server, which is not running, and waits until it is ready.
func (s *apiServer) start() error {
	s.process = s.Command()
	s.process.Stdout, s.process.Stderr = s.log, s.log
	return errors.Join(s.process.Start(), kubetest.WaitReady(s.client))
}

func (s *apiServer) kill() {
	s.process.Process.Kill()
	s.process.Wait()
}

func (s *apiServer) close() {
	s.kill()
	s.etcd.Close()
	s.store.Stop()
}

func (s *apiServer) restart(tb testing.TB) {
	tb.Helper()
	s.kill()
	if err := s.start(); err != nil {
		tb.Fatal(err)
	}
}

func freePorts(n int) (ports []netip.AddrPort, err error) {
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close()
		ports = append(ports, l.Addr().(*net.TCPAddr).AddrPort())
	}
	return ports, nil
}
