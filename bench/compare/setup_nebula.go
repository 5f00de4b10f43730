package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
)

// nebulaConfig takes: directory of the authority, of the host, the other's
// overlay and underlay address, and the own underlay address. Batch, buffers,
// routines and queue are what nebula's example file names for throughput; an MTU
// of 1440 fills the underlay's 1500.
const nebulaConfig = `pki:
  ca: %[1]s/ca.crt
  cert: %[2]s/host.crt
  key: %[2]s/host.key
static_host_map:
  "%[3]s": ["%[4]s:4242"]
lighthouse:
  am_lighthouse: false
listen:
  host: %[5]s
  port: 4242
  batch: 64
  read_buffer: 10485760
  write_buffer: 10485760
punchy:
  punch: false
routines: 2
tun:
  dev: nebula0
  mtu: 1440
  tx_queue: 1000
logging:
  level: warning
  format: text
firewall:
  outbound: [{port: any, proto: any, host: any}]
  inbound: [{port: any, proto: any, host: any}]
`

func setupNebula(ctx context.Context, p *pair) error {
	addrs := p.setOverlay()
	dir := filepath.Dir(p.a.dir)
	ca := []string{"nebula-cert", "ca", "-name", "compare", "-out-crt", dir + "/ca.crt", "-out-key", dir + "/ca.key"}
	if _, err := p.a.run(ctx, ca...); err != nil {
		return err
	}
	for i, h := range p.hosts() {
		sign := []string{
			"nebula-cert", "sign", "-name", h.name, "-ip", addrs[i].String(), "-ca-crt", dir + "/ca.crt", "-ca-key", dir + "/ca.key",
			"-out-crt", h.path("host.crt"), "-out-key", h.path("host.key"),
		}
		if _, err := h.run(ctx, sign...); err != nil {
			return err
		}
		peer := p.hosts()[1-i]
		config := fmt.Sprintf(nebulaConfig, dir, h.dir, peer.overlay, peer.underlay, h.underlay)
		if err := os.WriteFile(h.path("config.yml"), []byte(config), 0o600); err != nil {
			return err
		}
		if err := h.start(ctx, nil, "nebula", "-config", h.path("config.yml")); err != nil {
			return err
		}
		if err := h.awaitLink(ctx, "nebula0"); err != nil {
			return err
		}
	}
	return nil
}
