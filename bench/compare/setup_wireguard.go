package main

import (
	"context"
	"crypto/ecdh"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"os"
)

func setupWireguard(ctx context.Context, p *pair) error {
	addrs := p.setOverlay()
	var keys [2]*ecdh.PrivateKey
	for i := range keys {
		key, err := ecdh.X25519().GenerateKey(rand.Reader)
		if err != nil {
			return fmt.Errorf("make key: %w", err)
		}
		keys[i] = key
	}
	for i, h := range p.hosts() {
		const link = "wg0"
		if err := h.start(ctx, []string{"LOG_LEVEL=error"}, "wireguard-go", "--foreground", link); err != nil {
			return err
		}
		if err := h.awaitLink(ctx, link); err != nil {
			return err
		}
		conf := fmt.Sprintf("[Interface]\nPrivateKey = %s\nListenPort = 51820\n[Peer]\nPublicKey = %s\nEndpoint = %s:51820\nAllowedIPs = %s/32\n",
			base64.StdEncoding.EncodeToString(keys[i].Bytes()),
			base64.StdEncoding.EncodeToString(keys[1-i].PublicKey().Bytes()),
			p.hosts()[1-i].underlay, p.hosts()[1-i].overlay)
		if err := os.WriteFile(h.path("wg.conf"), []byte(conf), 0o600); err != nil {
			return err
		}
		// The link is there before the control socket is.
		configured := func() bool {
			_, err := h.run(ctx, "wg", "setconf", link, h.path("wg.conf"))
			return err == nil
		}
		if err := h.await(ctx, "wg setconf", configured); err != nil {
			return err
		}
		if err := h.setLink(link, addrs[i], 0); err != nil {
			return err
		}
	}
	return nil
}
