package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/overlayd/overlayd/cmd/internal/pki"
)

// The commands of docs/start.md that this test runs, in their order.
const (
	cmdInit = iota
	cmdFirst
	cmdJoinFile
	cmdCopy
	cmdOther
	cmdRotate
	cmdJoinFileAgain
	cmdFinish
	cmdCount
)

// secured is a cluster whose first host has the authority and etcd, and whose other hosts join by files.
type secured struct {
	*first
	commands []string
	root     string // of the files of all hosts
	pki      string
	joins    []string // of the hosts, in their place there
	base     int      // below the third byte of subnets that are free
}

// newSecured runs the commands of docs/start.md on n hosts.
func newSecured(t *testing.T, n int, args ...string) *secured {
	t.Helper()
	c, dir := newHosts(t, []string{under4}, n), t.TempDir()
	s := &secured{first: &first{host: c.hosts[0], dir: filepath.Join(dir, "etcd"), url: "https://192.0.2.2:2379"}, root: dir, pki: filepath.Join(dir, "pki"), joins: make([]string, n)}
	if first := documented(t, "README.md", "TestJoinByFile"); !slices.Equal(first, documented(t, "docs/start.md", "TestJoinByFile")[:len(first)]) {
		t.Errorf("README.md begins with %q", first)
	}
	if s.commands = documented(t, "docs/start.md", "TestJoinByFile"); len(s.commands) != cmdCount {
		t.Fatalf("docs/start.md has the commands %q", s.commands)
	}
	s.must(cmdInit, 0)
	s.daemon = s.overlaydWith([]string{"OVERLAYD_PKI_DIR=" + s.pki, "OVERLAYD_ETCD_DATA_DIR=" + s.dir, "OVERLAYD_SUBNET_FILE=" + s.subnetFile}, append(s.words(cmdFirst, 0)[1:], args...)...)
	s.daemon.waitLog("msg=ready", patience)
	for i, h := range c.hosts[1:] {
		s.joins[i+1] = filepath.Join(dir, h.name, "etc/overlayd.pem")
		if err := os.MkdirAll(filepath.Dir(s.joins[i+1]), 0o700); err != nil {
			t.Fatal(err)
		}
		s.issue(i + 1)
		h.daemon = h.overlaydWith([]string{"OVERLAYD_SUBNET_FILE=" + h.subnetFile}, append(s.words(cmdOther, i+1)[1:], "--dataplane", modeKernel)...)
	}
	for _, h := range c.hosts[1:] {
		h.daemon.waitLog("msg=ready", patience)
	}
	s.base = s.free(10)
	return s
}

// free returns a number below the first of n subnets in a row that no host has taken.
func (s *secured) free(n int) int {
	s.c.t.Helper()
	var taken []int
	for _, h := range s.c.hosts {
		taken = append(taken, int(h.gateway().Addr().As4()[2]))
	}
	for base := 100; ; base += n {
		if !slices.ContainsFunc(taken, func(third int) bool { return base < third && third <= base+n }) {
			return base
		}
	}
}

// words are those of a command of docs/start.md, with the addresses and files of the test.
func (s *secured) words(command, i int) []string {
	name := s.c.hosts[i].name
	return strings.Fields(strings.NewReplacer("192.0.2.11", s.addr.String(), "root@node2:", filepath.Join(s.root, name), "--join-file /", "--join-file "+filepath.Join(s.root, name)+"/",
		"node2.pem", filepath.Join(s.root, name+".pem"), "node2", name, "scp ", "cp -p ").Replace(s.commands[command]))
}

// must runs a command of docs/start.md to its end.
func (s *secured) must(command, i int) {
	s.c.t.Helper()
	words := s.words(command, i)
	code, out := 0, ""
	if words[0] == "overlayd" {
		code, out = overlayd(s.c.t, append(words[1:], "--pki-dir", s.pki)...)
	} else if b, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
		code, out = -1, fmt.Sprint(err, string(b))
	}
	if code != 0 {
		s.c.t.Fatalf("%q: exit code %d: %s", words, code, out)
	}
}

// issue makes a join file for a host, and copies it there.
func (s *secured) issue(i int) {
	s.c.t.Helper()
	s.must(cmdJoinFile, i)
	s.must(cmdCopy, i)
}

// dial connects to etcd from the underlay, where nobody of the cluster is.
func (s *secured) dial(with credentials.TransportCredentials) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///192.0.2.2:2379", append(dialIn(s.c.under), grpc.WithTransportCredentials(with))...)
}

// certificate is what a join file says about a connection.
func certificate(t *testing.T, file string) *tls.Config {
	t.Helper()
	cert, err := tls.LoadX509KeyPair(file, file)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{cert}, ServerName: pki.ServerName, InsecureSkipVerify: true, NextProtos: []string{"h2"}}
}

// sees waits until a host has a peer with this subnet: what etcd is told there reaches it.
func (s *secured) sees(i, n int) {
	s.c.t.Helper()
	subnet := fmt.Sprintf("10.5.%d.0", s.base+n)
	h := s.c.hosts[i]
	eventually(s.c.t, patience, h.name+" has a route to "+subnet, func() error {
		if out := h.Run("ip", "route", "show", subnet+"/24"); !strings.Contains(out, subnet) {
			return fmt.Errorf("none")
		}
		return nil
	})
}

// adds puts a lease into etcd, by the socket of the first host.
func (s *secured) adds(n int) {
	s.c.t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"unix://" + s.dir + "/client.sock"}, Logger: zap.NewNop()})
	if err != nil {
		s.c.t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(s.c.t.Context(), patience)
	defer cancel()
	value := fmt.Sprintf(`{"PublicIP":"192.0.2.%d","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"02:00:00:00:00:%02x"}}`, 100+n, n)
	if _, err := client.Put(ctx, fmt.Sprintf("/coreos.com/network/subnets/10.5.%d.0-24", s.base+n), value); err != nil {
		s.c.t.Fatal(err)
	}
}

// TestJoinByFile: three hosts make a cluster with the commands of docs/start.md, and nobody without a certificate gets an answer
// from its etcd.
func TestJoinByFile(t *testing.T) {
	t.Parallel()
	s := newSecured(t, 3, "--dataplane", modeUserspace)
	a, b, c := s.pod(0, 0), s.c.hosts[1].pod(0, 0), s.c.hosts[2].pod(0, 0)
	warmUp(t, a, b)
	warmUp(t, b, c)
	for path, want := range map[string]os.FileMode{s.pki: 0o700 | os.ModeDir, s.pki + "/ca.pem": 0o600, s.joins[1]: 0o600, s.dir + "/client.sock": 0o600 | os.ModeSocket} {
		if info, err := os.Stat(path); err != nil || info.Mode() != want {
			t.Errorf("%s: mode %v, %v, want %v", path, info.Mode(), err, want)
		}
	}

	other := t.TempDir()
	if err := pki.Dir(other).Init(); err != nil {
		t.Fatal(err)
	}
	text, err := pki.Dir(other).JoinFile("stranger")
	if err != nil {
		t.Fatal(err)
	}
	stranger := filepath.Join(other, "join.pem")
	if err := pki.WriteFile(stranger, text); err != nil {
		t.Fatal(err)
	}
	for name, with := range map[string]credentials.TransportCredentials{
		"no TLS":         insecure.NewCredentials(),
		"no certificate": credentials.NewTLS(&tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}),
		"another's":      credentials.NewTLS(certificate(t, stranger)),
	} {
		conn, err := s.dial(with)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		_, err = pb.NewMaintenanceClient(conn).Status(ctx, &pb.StatusRequest{})
		cancel()
		conn.Close()
		if err == nil {
			t.Errorf("%s: answered", name)
		}
	}
	s.daemon.waitLog("embedded etcd refused a client", patience)
	// Of HTTP a member has the health alone, and nothing of the process.
	mine := certificate(t, s.joins[1])
	text, err = os.ReadFile(s.joins[1])
	if err != nil {
		t.Fatal(err)
	}
	mine.RootCAs = x509.NewCertPool() // as others check it: by address
	mine.RootCAs.AppendCertsFromPEM(text)
	mine.NextProtos, mine.InsecureSkipVerify, mine.ServerName = nil, false, "192.0.2.2"
	web := http.Client{Transport: &http.Transport{TLSClientConfig: mine, DisableKeepAlives: true, DialContext: func(context.Context, string, string) (conn net.Conn, err error) {
		err = s.c.under.Do(func() error { conn, err = net.Dial("tcp", "192.0.2.2:2379"); return err })
		return conn, err
	}}}
	for path, want := range map[string]int{"/metrics": 404, "/debug/vars": 404, "/health": 200} {
		resp, err := web.Get(s.url + path)
		if err != nil {
			t.Fatal(err)
		}
		if resp.Body.Close(); resp.StatusCode != want {
			t.Errorf("%s: %d, want %d", path, resp.StatusCode, want)
		}
	}
	for _, h := range []*host{s.host, s.c.hosts[1]} {
		doctor := h.overlayd("doctor", "--subnet-file", h.subnetFile)
		if doctor.wait(patience); linesWith(doctor.text(), "ok       certificates") != 1 {
			t.Errorf("doctor on %s:\n%s", h.name, doctor.text())
		}
		p := h.overlayd("lease", "list", "--subnet-file", h.subnetFile)
		if code := p.wait(patience); code != 0 || linesWith(p.text(), "192.0.2.") != 3 {
			t.Errorf("lease list on %s: exit code %d:\n%s", h.name, code, p.text())
		}
	}
}

// TestCertificatesChange: members go on while the server gets another certificate and the cluster another authority. Who has
// no file of that is not let in until he gets one. No packet is lost, and nothing is restarted.
func TestCertificatesChange(t *testing.T) {
	t.Parallel()
	s := newSecured(t, 3, "--dataplane", modeKernel)
	a, b := s.c.hosts[1].pod(0, 0), s.c.hosts[2].pod(0, 0)
	warmUp(t, a, b)
	there, back := startMeters(t, a, b)
	one, two := s.c.hosts[1], s.c.hosts[2]

	addr, err := netlink.ParseAddr("192.0.2.77/32")
	if err != nil {
		t.Fatal(err)
	}
	s.Must(func() error {
		l, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		return netlink.AddrAdd(l, addr)
	})
	eventually(t, patience, "a certificate for the other address", func() error {
		var conn *tls.Conn
		err := s.c.under.Do(func() (err error) {
			conn, err = tls.Dial("tcp", "192.0.2.2:2379", certificate(t, s.joins[1]))
			return err
		})
		if err != nil {
			return err
		}
		defer conn.Close()
		return conn.ConnectionState().PeerCertificates[0].VerifyHostname("192.0.2.77")
	})
	s.adds(1)
	s.sees(1, 1)

	s.must(cmdRotate, 0)
	s.daemon.waitLog("authorities=2", patience)
	if s.commands[cmdJoinFileAgain] != s.commands[cmdJoinFile] {
		t.Errorf("docs/start.md has %q", s.commands)
	}
	s.issue(1)
	one.daemon.cmd.Process.Signal(unix.SIGHUP)
	one.daemon.waitLog(`certificates="others: connecting again"`, patience)
	s.adds(2)
	s.sees(1, 2)
	s.sees(2, 2)

	s.must(cmdFinish, 0)
	s.daemon.waitLog("their certificates are no longer taken", patience)
	if text := s.daemon.text(); !strings.Contains(text, "clients="+two.name+" fix=") {
		t.Errorf("the wrong one was closed:\n%s", text)
	}
	s.adds(3)
	s.sees(1, 3)
	if out := two.Run("ip", "route", "show", fmt.Sprintf("10.5.%d.0/24", s.base+3)); out != "" {
		t.Errorf("%s was let in: %s", two.name, out)
	}
	two.daemon.waitLog("the certificate of the store is not trusted by the authorities in "+s.joins[2], patience)
	eventually(t, patience, "doctor says what to do", func() error {
		if _, out := overlayd(t, "doctor", "--subnet-file", two.subnetFile); !strings.Contains(out, "on the first host: overlayd pki join-file NODE, and copy the file to "+s.joins[2]) {
			return errors.New(out)
		}
		return nil
	})
	s.issue(2)
	s.sees(2, 3)
	if lost := there.finish() + back.finish(); lost > 0 {
		t.Errorf("%d datagrams lost", lost)
	}
	if code, out := overlayd(t, "pki", "--pki-dir", s.pki, "rotate", "--finish"); code != exitUsage || !strings.Contains(out, "overlayd pki rotate makes it") {
		t.Errorf("exit code %d: %s", code, out)
	}
}
