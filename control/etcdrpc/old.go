package etcdrpc

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// oldestMinor is the oldest minor version of etcd 3 that is known to work: Debian 12 has it.
const oldestMinor = 4

// check finds out whether an etcd is too old.
type check struct {
	done chan struct{} // closed at its end
	err  error         // valid after that
}

// startCheck begins a check, which ends with ctx.
func startCheck(ctx context.Context, e *clientv3.Client) *check {
	c := &check{done: make(chan struct{})}
	go func() { // Client.end waits for it
		defer close(c.done)
		ctx, cancel := context.WithTimeout(ctx, rpcTimeout)
		defer cancel()
		c.err = checkVersion(ctx, e)
	}()
	return c
}

// checkVersion refuses an etcd that is too old. One that does not say its version is accepted.
func checkVersion(ctx context.Context, e *clientv3.Client) error {
	resp, err := pb.NewMaintenanceClient(e.ActiveConnection()).Status(ctx, &pb.StatusRequest{})
	if err != nil {
		return nil // the call that needs the connection says what is wrong
	}
	return checkVersionText(resp.Version)
}

func checkVersionText(version string) error {
	parts := strings.SplitN(version, ".", 3)
	if len(parts) < 3 {
		return nil
	}
	major, err := strconv.Atoi(parts[0])
	minor, err2 := strconv.Atoi(parts[1])
	if err != nil || err2 != nil || major > 3 || major == 3 && minor >= oldestMinor {
		return nil
	}
	return fmt.Errorf("etcd has version %.20q: want 3.%d or newer", version, oldestMinor)
}
