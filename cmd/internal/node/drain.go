package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/cmd/internal/leftovers"
	"github.com/overlayd/overlayd/cmd/internal/nodefile"
	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane/pace"
	"github.com/overlayd/overlayd/dataplane/subnetfile"
)

// Drained is what Drain did.
type Drained struct {
	PID    int          // of the daemon that gave its leases back and stopped; 0: none was running
	Leases []GivenLease // what was given back through the stores because no daemon was running
}

// GivenLease is what Drain gave back in one network.
type GivenLease struct {
	Network string       // "" if the daemon serves one network
	Public  []netip.Addr // that this host publishes in it
	Subnets []string     // of the leases, each as Lease.CIDRs; empty if this host had no lease
}

// The errors of Drain that need something from the user.
var (
	ErrNotGivenBack   = errors.New("the daemon has stopped without giving its lease back")
	ErrNotHandedOver  = errors.New("the daemon has stopped without handing over to the kernel")
	ErrNotStopped     = errors.New("the daemon has not stopped in time")
	ErrStoreAway      = errors.New("its store does not answer")
	ErrAliveElsewhere = errors.New("a daemon that publishes the same address is alive, or was seconds ago")
)

// Drain gives this host's leases back. The daemon with the same subnet file, or which serves one of
// cfg.Networks, does it and stops; if none is running, it is done through the stores. Of cfg it
// needs neither Endpoints nor StartEtcd.
func Drain(ctx context.Context, cfg Config) (Drained, error) {
	files := cfg.claimedFiles()
	pid, held, err := nodefile.FindDaemon(files)
	switch {
	case err != nil:
		return Drained{}, err
	case len(held) > 0:
		return Drained{PID: pid}, drainDaemon(ctx, pid, held)
	case !cfg.several():
		given, err := drainStore(ctx, cfg, "")
		return Drained{Leases: []GivenLease{given}}, err
	}
	var d Drained
	for _, file := range files {
		given, err := drainStore(ctx, cfg, nodefile.NetworkOf(file))
		if err != nil {
			return d, fmt.Errorf("network %s: %w", nodefile.NetworkOf(file), err)
		}
		d.Leases = append(d.Leases, given)
	}
	return d, nil
}

// claimedFiles returns the subnet files that a daemon of this config claims.
func (c *Config) claimedFiles() []string {
	if c.several() {
		return c.servedFiles()
	}
	return []string{c.SubnetFile}
}

// servedFiles returns the subnet files of the wanted networks that a daemon has served.
func (c *Config) servedFiles() []string {
	return slices.DeleteFunc(nodefile.SubnetFilesIn(c.SubnetDir), func(file string) bool { return !c.concerns(nodefile.NetworkOf(file)) })
}

// drainDaemon has the daemon give back its leases, on the subnets of these files.
func drainDaemon(ctx context.Context, pid int, files []string) error {
	there := make(map[string]bool, len(files))
	for _, file := range files {
		_, err := os.Stat(file)
		there[file] = err == nil
		own, _ := subnetfile.Read(file) // none: the path of the file tells enough
		if err := leftovers.CheckFlanneld(file, own, false); err != nil {
			return err
		}
	}
	if err := stopDaemon(ctx, pid, unix.SIGUSR1, files); err != nil {
		return err
	}
	for _, file := range files {
		// The daemon removes its subnet file once the lease is given back, if there is one.
		if _, err := os.Stat(file); err == nil || !there[file] && !nodefile.WasDrained(file) {
			return fmt.Errorf("%w (pid %d)", ErrNotGivenBack, pid)
		}
	}
	return nil
}

// stopDaemon sends a signal that ends the daemon, and waits until it holds none of these files.
func stopDaemon(ctx context.Context, pid int, how unix.Signal, files []string) error {
	if err := unix.Kill(pid, how); err != nil {
		return fmt.Errorf("signal the daemon (pid %d): %w", pid, err)
	}
	for _, file := range files {
		for {
			now, held, err := nodefile.Holder(file)
			if err == nil && (!held || now != pid) {
				break
			}
			if !pace.Sleep(ctx, 20*time.Millisecond, nil) {
				return fmt.Errorf("%w (pid %d): see its log: %w", ErrNotStopped, pid, ctx.Err())
			}
		}
	}
	return nil
}

// drainStore gives back the lease in a network of a host whose daemon does not run.
func drainStore(ctx context.Context, cfg Config, name string) (given GivenLease, err error) {
	n := New(cfg).newNetwork(name)
	given.Network = name
	if err := n.openStore(ctx); err != nil {
		return given, err
	}
	defer n.closeStore()
	config, err := n.store.Network(ctx)
	if err != nil && !isUnusable(err) {
		return given, err
	}
	if err := n.chooseUnderlay(ctx, config); err != nil {
		return given, err
	}
	if n.file, err = nodefile.Claim(n.subnetFile); err != nil { // no daemon starts meanwhile
		return given, err
	}
	defer n.release()
	n.node.ID = n.file.ID
	n.node.Process, _ = n.daemon.estate.Identity()
	given.Public = n.published(config)
	if given.Subnets, err = n.releaseOwn(ctx, config, given.Public); err != nil {
		return given, err
	}
	n.left = n.file.Left
	n.removeRules()
	if err := os.Remove(n.subnetFile); err != nil && !errors.Is(err, os.ErrNotExist) {
		return given, err
	}
	return given, nil
}

// published returns the addresses that this node publishes in a network; of both families if the
// config is not known or cannot be read.
func (n *Network) published(c control.Network) (addrs []netip.Addr) {
	ends := n.iface.Underlays(c.EnableIPv4, c.EnableIPv6)
	if len(ends) == 0 {
		ends = n.iface.Underlays(true, true)
	}
	for _, e := range ends {
		addrs = append(addrs, e.Public)
	}
	return addrs
}
