package testbed

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"time"

	"golang.org/x/sync/errgroup"
)

// SendStream sends the payload over a connection for as long as d, ends it, and
// returns when the receiver has ended it too.
func (s Socket) SendStream(p Payload, d time.Duration) (sent int64, err error) {
	if sent, err = p.Send(s, d); err != nil {
		return sent, err
	}
	if err := s.CloseWrite(); err != nil {
		return sent, fmt.Errorf("end TCP: %w", err)
	}
	if _, err := s.Read(make([]byte, 1)); err != io.EOF {
		return sent, fmt.Errorf("wait for the receiver's end: %w", stalled(err))
	}
	return sent, nil
}

// Stream sends TCP from one namespace to an address of another for as long as d,
// verifies every byte, and returns what the receiver got. When ctx ends, Stream
// ends with its cause.
func Stream(ctx context.Context, from, to *Namespace, addr netip.Addr, d time.Duration) (Received, error) {
	client, server, err := connect(from, to, addr)
	if err != nil {
		return Received{}, err
	}
	defer client.Close()
	defer server.Close()
	got, err := runStream(ctx, client, server, d)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return got, err
}

// connect makes a TCP connection from one namespace to an address of another.
func connect(from, to *Namespace, addr netip.Addr) (client, server Socket, err error) {
	var listener Socket
	err = to.Do(func() (err error) {
		listener, err = ListenTCP(netip.AddrPortFrom(addr, 0), 1)
		return err
	})
	if err != nil {
		return -1, -1, fmt.Errorf("%s: %w", to.Name, err)
	}
	defer listener.Close()
	target, err := listener.Local()
	if err != nil {
		return -1, -1, fmt.Errorf("%s: read address of listener: %w", to.Name, err)
	}
	err = from.Do(func() (err error) {
		client, err = DialTCP(target)
		return err
	})
	if err != nil {
		return -1, -1, fmt.Errorf("%s: %w", from.Name, err)
	}
	if server, err = listener.Accept(); err != nil {
		client.Close()
		return -1, -1, fmt.Errorf("%s: %w", to.Name, err)
	}
	return client, server, nil
}

// runStream runs both ends of a connection. If one fails or ctx ends, both end.
func runStream(ctx context.Context, client, server Socket, d time.Duration) (got Received, err error) {
	halt := func() {
		client.Shutdown()
		server.Shutdown()
	}
	halted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(halted)
		halt()
	})
	payload := Pattern()
	var sent int64
	var group errgroup.Group
	group.Go(func() (err error) {
		if sent, err = client.SendStream(payload, d); err != nil {
			halt() // the receiver would wait for the rest
		}
		return err
	})
	group.Go(func() (err error) {
		if got, err = payload.Receive(server); err != nil {
			halt()
			return err
		}
		return server.CloseWrite()
	})
	err = group.Wait()
	if !stop() {
		<-halted // the caller closes the descriptors, which others may get then
	}
	switch {
	case err != nil:
		return Received{}, err
	case sent != got.Bytes:
		return Received{}, fmt.Errorf("received %d bytes of %d sent", got.Bytes, sent)
	}
	return got, nil
}
