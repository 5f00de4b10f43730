//go:build kube

// Package kubetest runs a real kube-apiserver for tests. `make test-kube` builds one into
// a cache outside the tree and names it in OVERLAYD_KUBE_APISERVER; there is nothing else in
// a cluster of it: no kubelet, no controller, so that a Node is what a test writes.
package kubetest

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// Binary is the variable that names the kube-apiserver.
const Binary = "OVERLAYD_KUBE_APISERVER"

// adminToken is that of a user whom RBAC allows everything.
const adminToken = "kubetest-admin"

// Server is one API server: its files, and how to start and reach it. It listens with
// TLS, and its data are in the etcd that the caller has.
type Server struct {
	Addr netip.AddrPort
	etcd string // URL
	dir  string
}

// New writes the files of a Server into dir.
func New(dir, etcd string, addr netip.AddrPort) (*Server, error) {
	if os.Getenv(Binary) == "" {
		return nil, fmt.Errorf("%s is not set: run make test-kube", Binary)
	}
	s := &Server{Addr: addr, etcd: etcd, dir: dir}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	tokens := adminToken + `,admin,admin,"system:masters"` + "\n"
	return s, errors.Join(os.WriteFile(s.path("tokens.csv"), []byte(tokens), 0o600),
		os.WriteFile(s.path("sa.key"), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), 0o600))
}

func (s *Server) path(name string) string { return filepath.Join(s.dir, name) }

// Command returns a new process of the server, to be started by the caller if the
// server is to be. It is ended by SIGKILL: SIGTERM takes seconds.
func (s *Server) Command() *exec.Cmd {
	return exec.Command(os.Getenv(Binary),
		"--etcd-servers="+s.etcd,
		"--bind-address="+s.Addr.Addr().String(), fmt.Sprintf("--secure-port=%d", s.Addr.Port()),
		"--cert-dir="+s.dir,
		"--advertise-address=192.0.2.1", "--endpoint-reconciler-type=none", // a loopback address is refused
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file="+s.path("sa.key"), "--service-account-signing-key-file="+s.path("sa.key"),
		"--token-auth-file="+s.path("tokens.csv"), "--authorization-mode=RBAC",
		"--disable-admission-plugins=ServiceAccount", // it waits for a controller
		"--service-cluster-ip-range=198.51.100.0/24", "--profiling=false", "--v=0")
}

// RESTConfig returns how to reach the server with a token; "" is the administrator's.
func (s *Server) RESTConfig(token string) *rest.Config {
	if token == "" {
		token = adminToken
	}
	return &rest.Config{Host: "https://" + s.Addr.String(), BearerToken: token, QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
}

// Client returns an administrator's client that dials with dial, or as usual if that is nil.
func (s *Server) Client(dial func(ctx context.Context, network, addr string) (net.Conn, error)) (kubernetes.Interface, error) {
	c := s.RESTConfig("")
	c.Dial = dial
	c.ContentType = "application/vnd.kubernetes.protobuf"
	return kubernetes.NewForConfig(c)
}

// Kubeconfig writes a kubeconfig with a token ("" is the administrator's) for the
// server at host, ip:port ("" is its own), and returns its path.
func (s *Server) Kubeconfig(tb testing.TB, host, token string) string {
	tb.Helper()
	r := s.RESTConfig(token)
	if host != "" {
		r.Host = "https://" + host
	}
	c := api.NewConfig()
	c.Clusters["test"] = &api.Cluster{Server: r.Host, InsecureSkipTLSVerify: true}
	c.AuthInfos["test"] = &api.AuthInfo{Token: r.BearerToken}
	c.Contexts["test"] = &api.Context{Cluster: "test", AuthInfo: "test"}
	c.CurrentContext = "test"
	path := filepath.Join(tb.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*c, path); err != nil {
		tb.Fatal(err)
	}
	return path
}

// WaitReady waits until the server says that it is ready.
func WaitReady(client kubernetes.Interface) error {
	var err error
	for deadline := time.Now().Add(60 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		_, err = client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		cancel()
		if err == nil {
			return nil
		}
	}
	return fmt.Errorf("kube-apiserver is not ready: %w", err)
}
