package main

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
)

// tincMTU leaves room for tinc's own headers, MAC and padding: without MTU
// probing it does not find out by itself, and with it, it starts out on TCP.
const tincMTU = 1400

func setupTinc(ctx context.Context, p *pair) error {
	addrs := p.setOverlay()
	var public [2][]byte
	for i, h := range p.hosts() {
		key, err := rsa.GenerateKey(rand.Reader, 2048)
		if err != nil {
			return fmt.Errorf("make key: %w", err)
		}
		public[i] = pem.EncodeToMemory(&pem.Block{Type: "RSA PUBLIC KEY", Bytes: x509.MarshalPKCS1PublicKey(&key.PublicKey)})
		if err := writePEM(h.path("rsa_key.priv"), "RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(key)); err != nil {
			return err
		}
	}
	for i, h := range p.hosts() {
		if err := h.writeTincFiles(p, public); err != nil {
			return err
		}
		if err := h.start(ctx, nil, "tincd", "-c", h.dir, "-D", "--pidfile="+h.path("tinc.pid")); err != nil {
			return err
		}
		if err := h.awaitLink(ctx, "tinc0"); err != nil {
			return err
		}
		if err := h.setLink("tinc0", addrs[i], tincMTU); err != nil {
			return err
		}
	}
	return nil
}

// writeTincFiles writes what tincd reads from its directory.
func (h *host) writeTincFiles(p *pair, public [2][]byte) error {
	if err := os.Mkdir(h.path("hosts"), 0o755); err != nil {
		return err
	}
	conf := fmt.Sprintf("Name = %s\nMode = router\nInterface = tinc0\nAddressFamily = ipv4\n", h.name)
	if h == p.b {
		conf += "ConnectTo = a\n"
	}
	errs := []error{os.WriteFile(h.path("tinc.conf"), []byte(conf), 0o600)}
	for i, peer := range p.hosts() {
		text := fmt.Sprintf("Address = %s\nSubnet = %s/32\nPMTUDiscovery = no\n%s", peer.underlay, peer.overlay, public[i])
		errs = append(errs, os.WriteFile(h.path("hosts/"+peer.name), []byte(text), 0o600))
	}
	return errors.Join(errs...)
}
