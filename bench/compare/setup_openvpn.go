package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"strings"
	"time"
)

// setupOpenVPN joins the hosts point to point by TLS. (Its static keys allow no
// AEAD cipher, and would be slower.)
func setupOpenVPN(ctx context.Context, p *pair) error {
	p.setOverlay()
	var prints [2]string
	for i, h := range p.hosts() {
		var err error
		if prints[i], err = writeCertificate(h); err != nil {
			return fmt.Errorf("make certificate: %w", err)
		}
	}
	roles := [2][]string{{"--tls-server", "--dh", "none"}, {"--tls-client"}}
	for i, h := range p.hosts() {
		peer := p.hosts()[1-i]
		args := append([]string{
			"openvpn", "--dev", "tun0", "--dev-type", "tun", "--proto", "udp4", "--local", h.underlay.String(), "--remote", peer.underlay.String(),
			"--ifconfig", h.overlay.String(), peer.overlay.String(), "--cert", h.path("cert.pem"), "--key", h.path("key.pem"),
			"--peer-fingerprint", prints[1-i], "--tun-mtu", "1440", "--mssfix", "0", "--fast-io", "--txqueuelen", "1000",
			"--sndbuf", "2097152", "--rcvbuf", "2097152", "--disable-dco", "--verb", "3",
		}, roles[i]...)
		if err := h.start(ctx, nil, args...); err != nil {
			return err
		}
	}
	for _, h := range p.hosts() {
		if err := h.awaitLink(ctx, "tun0"); err != nil {
			return err
		}
	}
	return nil
}

// writeCertificate makes a self-signed certificate and returns its fingerprint as
// openvpn takes it.
func writeCertificate(h *host) (fingerprint string, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: h.name},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(24 * time.Hour),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return "", err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return "", err
	}
	err = errors.Join(
		writePEM(h.path("cert.pem"), "CERTIFICATE", cert),
		writePEM(h.path("key.pem"), "PRIVATE KEY", secret))
	sum := sha256.Sum256(cert)
	return strings.ReplaceAll(fmt.Sprintf("% X", sum), " ", ":"), err
}

func writePEM(path, kind string, der []byte) error {
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}
