package conns

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	"golang.org/x/net/http/httpproxy"
)

// maxProxyHead is how many bytes of an answer are read that a proxy gives before it forwards.
const maxProxyHead = 16 << 10

// DialByProxy connects to a host and port as DialContext does, through the HTTP proxy that HTTPS_PROXY names, unless NO_PROXY excepts the host
// (CONNECT, RFC 9110, section 9.3.6). The proxy looks up the name of the host.
func (d *Dialer) DialByProxy(ctx context.Context, address string) (net.Conn, error) {
	proxy, err := httpproxy.FromEnvironment().ProxyFunc()(&url.URL{Scheme: "https", Host: address})
	if err != nil {
		return nil, fmt.Errorf("HTTPS_PROXY: %w", err)
	}
	if proxy == nil {
		return d.DialContext(ctx, "tcp", address)
	}
	port := map[string]string{"http": "80", "https": "443"}[proxy.Scheme]
	if port == "" {
		return nil, fmt.Errorf("HTTPS_PROXY: no http or https proxy: %s", proxy.Redacted())
	}
	if proxy.Port() != "" {
		port = proxy.Port()
	}
	c, err := d.DialContext(ctx, "tcp", net.JoinHostPort(proxy.Hostname(), port))
	if err != nil {
		return nil, fmt.Errorf("proxy %s: %w", proxy.Redacted(), err)
	}
	// The context ends what is under way here, and nothing later.
	stop := context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) })
	through, err := connect(ctx, c, proxy, address)
	if !stop() {
		err = context.Cause(ctx)
	}
	if err != nil {
		c.Close()
		return nil, fmt.Errorf("proxy %s to %s: %w", proxy.Redacted(), address, err)
	}
	return through, nil
}

// connect has the proxy at the other end of c connect to an address.
func connect(ctx context.Context, c net.Conn, proxy *url.URL, address string) (net.Conn, error) {
	if proxy.Scheme == "https" {
		t := tls.Client(c, &tls.Config{ServerName: proxy.Hostname()})
		if err := t.HandshakeContext(ctx); err != nil {
			return nil, err
		}
		c = t
	}
	ask := &http.Request{Method: http.MethodConnect, URL: &url.URL{Opaque: address}, Host: address, Header: http.Header{}}
	if password, ok := proxy.User.Password(); ok || proxy.User != nil {
		ask.Header.Set("Proxy-Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(proxy.User.Username()+":"+password)))
	}
	if err := ask.Write(c); err != nil {
		return nil, err
	}
	r := bufio.NewReader(io.LimitReader(c, maxProxyHead))
	answer, err := http.ReadResponse(r, ask)
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		return nil, errors.New("no HTTP answer")
	}
	if err != nil {
		return nil, err
	}
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("refused: %s", answer.Status)
	}
	if r.Buffered() == 0 {
		return c, nil
	}
	early, err := r.Peek(r.Buffered()) // some servers speak first
	return &spoken{c, io.MultiReader(bytes.NewReader(early), c)}, err
}

// spoken is a connection of which some bytes have been read.
type spoken struct {
	net.Conn
	all io.Reader
}

// Read implements net.Conn.
func (s *spoken) Read(b []byte) (int, error) { return s.all.Read(b) }
