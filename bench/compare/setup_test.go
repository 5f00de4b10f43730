package main

import (
	"bytes"
	"context"
	"crypto/ecdh"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// fakeDaemon takes note of its arguments and makes a link as the real one does.
func fakeDaemon(link string) string {
	return "echo \"$*\" >argv\nip link add " + link + " type bridge\nexec sleep 1000\n"
}

// fakePair is two hosts on which programs are shell scripts of the test.
func fakePair(t *testing.T, programs map[string]string) (context.Context, *pair) {
	t.Helper()
	return fakePairOver(t, underlay{name: "default"}, programs)
}

func fakePairOver(t *testing.T, u underlay, programs map[string]string) (context.Context, *pair) {
	t.Helper()
	netnstest.RequireRoot(t)
	bin := t.TempDir()
	for name, script := range programs {
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	p, err := newPair(ctx, filepath.Join(t.TempDir(), "pair"), u)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return ctx, p
}

// content returns a file of a host, after its daemon has written it.
func (h *host) content(ctx context.Context, t *testing.T, name string) string {
	t.Helper()
	var text []byte
	err := h.await(ctx, "content of "+name, func() bool {
		text, _ = os.ReadFile(h.path(name))
		return len(text) > 0
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// wants fails if a text lacks one of the parts.
func wants(t *testing.T, what, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%s: no %q in\n%s", what, part, text)
		}
	}
}

// checkOverlay fails if a link lacks the host's overlay address.
func (h *host) checkOverlay(ctx context.Context, t *testing.T, link string, mtu string) {
	t.Helper()
	out, err := h.run(ctx, "ip", "addr", "show", "dev", link)
	if err != nil {
		t.Fatal(err)
	}
	wants(t, "host "+h.name, out, " "+h.overlay.String()+"/24 ", "UP", mtu)
}

// TestWireguardHostsKnowEachOther: each host has the other's public key, and wg is
// called again until the control socket is there.
func TestWireguardHostsKnowEachOther(t *testing.T) {
	ctx, p := fakePair(t, map[string]string{
		"wireguard-go": `echo "$LOG_LEVEL $*" >argv; ip link add "$2" type bridge; exec sleep 1000`,
		"wg":           "echo called >>calls\ntest -e early && exit 0\ntouch early\nexit 1\n",
	})
	if err := setupWireguard(ctx, p); err != nil {
		t.Fatal(err)
	}
	field := func(h *host, name string) string {
		_, rest, _ := strings.Cut(h.content(ctx, t, "wg.conf"), name+" = ")
		value, _, _ := strings.Cut(rest, "\n")
		return value
	}
	for i, h := range p.hosts() {
		peer := p.hosts()[1-i]
		raw, err := base64.StdEncoding.DecodeString(field(peer, "PrivateKey"))
		if err != nil {
			t.Fatal(err)
		}
		key, err := ecdh.X25519().NewPrivateKey(raw)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := field(h, "PublicKey"), base64.StdEncoding.EncodeToString(key.PublicKey().Bytes()); got != want {
			t.Errorf("host %s has the key %s of its peer, want %s", h.name, got, want)
		}
		if got, want := field(h, "Endpoint"), peer.underlay.String()+":51820"; got != want {
			t.Errorf("host %s has the endpoint %s, want %s", h.name, got, want)
		}
		if got, want := field(h, "AllowedIPs"), peer.overlay.String()+"/32"; got != want {
			t.Errorf("host %s allows %s, want %s", h.name, got, want)
		}
		if got := h.content(ctx, t, "calls"); got != "called\ncalled\n" {
			t.Errorf("host %s: wg was %q, want it called again after its failure", h.name, got)
		}
		wants(t, h.name, h.content(ctx, t, "argv"), "error --foreground wg0")
		h.checkOverlay(ctx, t, "wg0", "mtu 1500")
	}
}

// TestOpenVPNHostsTrustEachOther: each pins the other's certificate, whose key is its own.
func TestOpenVPNHostsTrustEachOther(t *testing.T) {
	ctx, p := fakePair(t, map[string]string{"openvpn": fakeDaemon("tun0")})
	if err := setupOpenVPN(ctx, p); err != nil {
		t.Fatal(err)
	}
	roles := [2]string{"--tls-server --dh none", "--tls-client"}
	for i, h := range p.hosts() {
		peer := p.hosts()[1-i]
		pair, err := tls.LoadX509KeyPair(peer.path("cert.pem"), peer.path("key.pem"))
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(pair.Certificate[0])
		fingerprint := strings.ReplaceAll(fmt.Sprintf("% X", sum), " ", ":")
		wants(t, h.name, h.content(ctx, t, "argv"), "--peer-fingerprint "+fingerprint, roles[i], "--remote "+peer.underlay.String(), "--local "+h.underlay.String(),
			"--ifconfig "+h.overlay.String()+" "+peer.overlay.String(), "--cert "+h.path("cert.pem"))
		cert, err := x509.ParseCertificate(pair.Certificate[0])
		if err != nil || time.Now().Before(cert.NotBefore) || time.Now().After(cert.NotAfter) || cert.Subject.CommonName != peer.name {
			t.Errorf("certificate of %s: %v, %v to %v", peer.name, err, cert.NotBefore, cert.NotAfter)
		}
		if info, err := os.Stat(h.path("key.pem")); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("key of %s: %v, %v", h.name, info.Mode(), err)
		}
	}
}

// TestTincHostsKnowEachOther: each has the public keys of both, and only the second connects.
func TestTincHostsKnowEachOther(t *testing.T) {
	ctx, p := fakePair(t, map[string]string{"tincd": fakeDaemon("tinc0")})
	if err := setupTinc(ctx, p); err != nil {
		t.Fatal(err)
	}
	for _, h := range p.hosts() {
		conf := h.content(ctx, t, "tinc.conf")
		wants(t, h.name, conf, "Name = "+h.name+"\n", "Interface = tinc0\n")
		if got := strings.Contains(conf, "ConnectTo"); got != (h == p.b) {
			t.Errorf("host %s connects: %v", h.name, got)
		}
		for _, peer := range p.hosts() {
			text := h.content(ctx, t, "hosts/"+peer.name)
			wants(t, h.name, text, "Address = "+peer.underlay.String()+"\n", "Subnet = "+peer.overlay.String()+"/32\n")
			secret, _ := pem.Decode([]byte(peer.content(ctx, t, "rsa_key.priv")))
			key, err := x509.ParsePKCS1PrivateKey(secret.Bytes)
			if err != nil {
				t.Fatal(err)
			}
			public, _ := pem.Decode([]byte(text[strings.Index(text, "-----BEGIN"):]))
			if !bytes.Equal(public.Bytes, x509.MarshalPKCS1PublicKey(&key.PublicKey)) {
				t.Errorf("host %s does not have the key of %s", h.name, peer.name)
			}
		}
		h.checkOverlay(ctx, t, "tinc0", "mtu 1400")
	}
}

// TestNebulaHostsKnowEachOther: one authority signs both, each with its own address.
func TestNebulaHostsKnowEachOther(t *testing.T) {
	ctx, p := fakePair(t, map[string]string{"nebula": fakeDaemon("nebula0"), "nebula-cert": `echo "$*" >>signed`})
	if err := setupNebula(ctx, p); err != nil {
		t.Fatal(err)
	}
	if got := p.a.content(ctx, t, "signed"); strings.Count(got, "ca -name") != 1 || strings.Contains(p.b.content(ctx, t, "signed"), "ca -name") {
		t.Errorf("not one authority: %q", got)
	}
	for i, h := range p.hosts() {
		peer := p.hosts()[1-i]
		wants(t, h.name, h.content(ctx, t, "signed"), "sign -name "+h.name+" -ip "+h.overlay.String()+"/24 ", "-out-key "+h.path("host.key"))
		wants(t, h.name, h.content(ctx, t, "config.yml"), fmt.Sprintf("%q: [%q]", peer.overlay, peer.underlay.String()+":4242"),
			"host: "+h.underlay.String()+"\n", "cert: "+h.path("host.crt")+"\n")
		wants(t, h.name, h.content(ctx, t, "argv"), "-config "+h.path("config.yml"))
	}
	if strings.Contains(p.a.content(ctx, t, "config.yml")+p.b.content(ctx, t, "config.yml"), "%!") {
		t.Error("the config has a verb without a value")
	}
}

// fakeOverlayd writes a subnet file as overlayd does.
const fakeOverlayd = `echo "$*" >argv
while [ "$1" != --subnet-file ]; do shift; done
case $2 in */a/*) net=10.99.7;; *) net=10.99.8;; esac
printf 'FLANNEL_SUBNET=%s.1/24\nFLANNEL_MTU=1450\n' $net >"$2.part"
mv "$2.part" "$2"
exec sleep 1000
`

// TestOverlaydHosts: the first host has the etcd of both, tier flags go to userspace only, and
// the traffic goes to the base address of the subnet in the file.
func TestOverlaydHosts(t *testing.T) {
	ctx, p := fakePair(t, map[string]string{"overlayd": fakeOverlayd})
	c := overlaydCandidate("overlayd", "kernel", "userspace", tier{"plain", []string{"--debug-offloads=none"}}, row{name: "x"})
	if err := c.setup(ctx, p); err != nil {
		t.Fatal(err)
	}
	a, b := p.a.content(ctx, t, "argv"), p.b.content(ctx, t, "argv")
	wants(t, "a", a, "--dataplane kernel", "--etcd-embedded", "--etcd-listen-client-url http://192.0.2.1:2379", "--network "+overlayNetwork)
	wants(t, "b", b, "--dataplane userspace", "--etcd-endpoints http://192.0.2.1:2379", "--debug-offloads=none")
	if strings.Contains(a, "--debug-offloads") || strings.Contains(b, "--etcd-embedded") {
		t.Errorf("flags of the other host:\n%s%s", a, b)
	}
	if p.a.overlay.String() != "10.99.7.0" || p.b.overlay.String() != "10.99.8.0" {
		t.Errorf("overlay addresses are %s and %s", p.a.overlay, p.b.overlay)
	}
	if c.name != "overlayd-kernel-userspace-plain" || !strings.HasSuffix(c.note, "; --debug-offloads=none") {
		t.Errorf("candidate %q, note %q", c.name, c.note)
	}
}

// TestCopiersCarry: TCP goes through copiers in both directions, between two and beside the kernel's vxlan, over each underlay.
func TestCopiersCarry(t *testing.T) {
	for _, u := range underlays() {
		for _, kernel := range []bool{true, false} {
			ctx, p := fakePairOver(t, u, nil)
			if err := setupCopier(ctx, p, kernel); err != nil {
				t.Fatal(err)
			}
			if err := p.reach(ctx); err != nil {
				t.Fatalf("%v\n%s", err, p.logs())
			}
			for _, w := range []way{{from: p.a, to: p.b}, {from: p.b, to: p.a}} {
				if _, err := w.tcp(ctx, 2, 100*time.Millisecond); err != nil {
					t.Errorf("%s, vxlan on the first host: %v; TCP from %s: %v\n%s", u.name, kernel, w.from.name, err, p.logs())
				}
			}
		}
	}
}

// TestSetupErrorsNameTheHost: a broken subnet file is an error with the host, and a daemon that ends says how.
func TestSetupErrorsNameTheHost(t *testing.T) {
	ctx, p := fakePair(t, map[string]string{
		"broken":  `echo FLANNEL_SUBNET=junk >"$6"; exec sleep 1000`,
		"wg":      "exit 0",
		"openvpn": "echo no such option >&2; exit 7",
	})
	err := setupOverlayd(ctx, p, "broken", [2]string{"kernel", "kernel"}, nil)
	if err == nil || !strings.Contains(err.Error(), "host a: ") {
		t.Errorf("subnet file: %v", err)
	}
	if err = setupOpenVPN(ctx, p); err == nil || !strings.Contains(err.Error(), "openvpn has ended: exit status 7") {
		t.Errorf("daemon: %v", err)
	}
	wants(t, "logs", p.logs(), "host a, openvpn.log:", "no such option")
	if _, err := p.a.run(ctx, "sh", "-c", "echo why; exit 3"); err == nil || !strings.Contains(err.Error(), "exit status 3: why") {
		t.Errorf("program: %v", err)
	}
	if err := p.a.start(ctx, nil, "/nonexistent/program"); err == nil || !strings.Contains(err.Error(), "start /nonexistent/program") {
		t.Errorf("missing program: %v", err)
	}
}

// TestAwaitEndsWithItsContext and says what it waited for.
func TestAwaitEndsWithItsContext(t *testing.T) {
	_, p := fakePair(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	err := p.b.await(ctx, "link x0", func() bool { cancel(); return false })
	if err == nil || !strings.Contains(err.Error(), "host b: wait for link x0") && !strings.Contains(err.Error(), "canceled") {
		t.Errorf("got %v", err)
	}
	if err := p.b.setLink("none0", p.setOverlay()[0], 1400); err == nil || !strings.Contains(err.Error(), "none0") {
		t.Errorf("link that is not there: %v", err)
	}
}
