package node

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/overlayd/overlayd/cmd/internal/claim"
	"github.com/overlayd/overlayd/cmd/internal/handover"
	"github.com/overlayd/overlayd/cmd/internal/nodefile"
	"github.com/overlayd/overlayd/cmd/internal/parts"
	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane/netnstest"
	"github.com/overlayd/overlayd/dataplane/rtnl"
)

// TestDaemonWithoutNodeFile: it goes on with an ID of its own, and logs what that means.
func TestDaemonWithoutNodeFile(t *testing.T) {
	w := newWorld(t)
	if err := os.Symlink("nowhere", nodefile.Path(w.cfg.SubnetFile)); err != nil {
		t.Fatal(err)
	}
	n := New(w.cfg).newNetwork("")
	if err := n.claim(); err != nil || len(n.node.ID) != 32 || n.file.IsClaimed() {
		t.Fatalf("claim: %v, ID %q", err, n.node.ID)
	}
	if w.log.count("no node file: trying again") != 1 {
		t.Errorf("log: %s", w.log.text())
	}
	n.remember(nodefile.Left{VNIs: []uint32{7}}) // of the next session in this process
	if !slices.Equal(n.left.VNIs, []uint32{7}) {
		t.Errorf("leftovers %v", n.left)
	}
	n.release()
	again := New(w.cfg).newNetwork("")
	if again.claim(); again.node.ID == n.node.ID {
		t.Error("two daemons without a file have one ID")
	}
}

// TestRemovedFiles: a daemon whose files somebody removes has them again: node file, hand-over socket and the claim of its device.
func TestRemovedFiles(t *testing.T) {
	t.Parallel()
	w := readyWorld(t)
	netns, err := claim.NetNSOf("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	files := []string{filepath.Join(claim.Dir, fmt.Sprintf("%d.%d", netns, w.vni)), nodefile.Path(w.cfg.SubnetFile), handover.Path(w.cfg.SubnetFile)}
	for _, f := range files {
		if err := os.Remove(f); err != nil {
			t.Fatal(err)
		}
	}
	w.await("there again", func() bool {
		return !slices.ContainsFunc(files, func(f string) bool { _, err := os.Lstat(f); return err != nil })
	})
	if _, err := claim.Beside(w.cfg.SubnetFile).Claim(w.vni); !errors.As(err, new(*claim.ServedError)) {
		t.Errorf("a second claim of the device: %v", err)
	}
	if _, err := nodefile.Claim(w.cfg.SubnetFile); !errors.As(err, new(*nodefile.RunningError)) {
		t.Errorf("a second claim of the node file: %v", err)
	}
}

// TestRemovedWhileItWaits: a daemon that waits for its store has its node file and its hand-over socket again, too.
func TestRemovedWhileItWaits(t *testing.T) {
	t.Parallel()
	needUnderlay(t)
	w := newWorld(t)
	w.memory("").SetDown(errDown)
	w.start()
	w.await("waiting", func() bool { return w.log.count("waiting for the network config") > 0 })
	files := []string{nodefile.Path(w.cfg.SubnetFile), handover.Path(w.cfg.SubnetFile)}
	for _, f := range files {
		if err := os.Remove(f); err != nil {
			t.Fatal(err)
		}
	}
	w.await("there again", func() bool {
		return !slices.ContainsFunc(files, func(f string) bool { _, err := os.Lstat(f); return err != nil })
	})
	if _, err := nodefile.Claim(w.cfg.SubnetFile); !errors.As(err, new(*nodefile.RunningError)) {
		t.Errorf("a second claim of the node file: %v", err)
	}
}

// TestIDOfTheNode: a daemon is known by the ID in its file, and has the leftovers that stand there.
func TestIDOfTheNode(t *testing.T) {
	w := newWorld(t)
	id := strings.Repeat("0e", 32/2)
	if err := os.WriteFile(nodefile.Path(w.cfg.SubnetFile), []byte(id+"\nvni 7\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	n := New(w.cfg).newNetwork("")
	if err := n.claim(); err != nil || n.node.ID != id || n.node.Name != "host" || !slices.Equal(n.left.VNIs, []uint32{7}) {
		t.Errorf("got %+v, %v, %v", n.node, n.left, err)
	}
	if err := New(w.cfg).newNetwork("").claim(); !errors.As(err, new(*nodefile.RunningError)) {
		t.Errorf("a second claim: %v", err)
	}
	n.release()
}

// TestRulesOnExit: a daemon that is told so takes its traffic rules with it, and no others.
func TestRulesOnExit(t *testing.T) {
	for _, remove := range []bool{false, true} {
		ns := netnstest.New(t)
		ns.Must(func() error {
			d := New(Config{Log: slog.New(slog.DiscardHandler), SubnetFile: filepath.Join(t.TempDir(), "subnet.env"), Options: parts.Options{Rules: parts.RuleConfig{Remove: remove}}})
			n := d.newNetwork("")
			if err := n.claim(); err != nil {
				return err
			}
			defer n.release()
			n.left = nodefile.Left{VNIs: []uint32{7}} // of an earlier run
			for _, table := range []string{"overlayd-7", "overlayd-8"} {
				if err := exec.Command("nft", "add", "table", "ip", table).Run(); err != nil {
					return err
				}
			}
			tables := func() string {
				out, err := exec.Command("nft", "list", "tables").Output()
				return strings.Join(strings.Fields(string(out)), " ") + fmt.Sprint(err)
			}
			both := tables()
			if n.stopped(); tables() != both {
				t.Errorf("a daemon that made no rules left %s", tables())
			}
			n.claimed.Store(true)
			n.stopped()
			if got := tables(); remove != (got == "table ip overlayd-8<nil>") || !remove != (got == both) {
				t.Errorf("remove %v: left %s", remove, got)
			}
			return nil
		})
	}
}

// TestClaimThatCannotBeMade: whatever keeps the claim of the device from being made, the status tells of it until it is made, and no other daemon is blamed.
func TestClaimThatCannotBeMade(t *testing.T) {
	t.Parallel()
	var log logBuffer
	d := New(Config{Log: slog.New(slog.NewTextHandler(&log, nil)), SubnetFile: filepath.Join(t.TempDir(), "subnet.env")})
	netnstest.New(t).Must(func() error {
		n := d.newNetwork("")
		defer n.releaseDevice()
		netns, err := claim.NetNS()
		if err != nil {
			return err
		}
		inTheWay := filepath.Join(claim.Dir, fmt.Sprintf("%d.7007", netns))
		if err := os.MkdirAll(inTheWay, 0o700); err != nil {
			return err
		}
		defer os.Remove(inTheWay)
		s := &Session{network: n}
		s.config.Backend.VNI = 7007
		s.claimAgain()
		if faults := n.Status().FileFaults; n.device != nil || len(faults) != 1 || log.count("cannot claim the overlay device") != 1 || log.count("another daemon's") > 0 {
			t.Errorf("%+v, log: %s", faults, log.text())
		}
		if err := os.Remove(inTheWay); err != nil {
			return err
		}
		if s.claimAgain(); n.device == nil || len(n.Status().FileFaults) > 0 {
			t.Errorf("afterwards: %+v", n.Status().FileFaults)
		}
		return nil
	})
}

// TestLeftoversOfAnotherDaemon: a session removes what the last one left, but for a device that
// another daemon serves by now.
func TestLeftoversOfAnotherDaemon(t *testing.T) {
	t.Parallel()
	ns := netnstest.New(t)
	for vni, alias := range map[string]string{"7": rtnl.Alias, "8": rtnl.Alias, "9": "mine"} {
		ns.Run("ip", "link", "add", "flannel."+vni, "type", "vxlan", "id", vni, "dstport", "8472")
		ns.Run("ip", "link", "set", "flannel."+vni, "alias", alias)
	}
	var log logBuffer
	d := New(Config{Log: slog.New(slog.NewTextHandler(&log, nil)), SubnetFile: filepath.Join(t.TempDir(), "subnet.env")})
	ns.Must(func() error {
		n := d.newNetwork("")
		if err := n.claim(); err != nil {
			return err
		}
		defer n.release()
		taken, err := n.devices().Claim(8)
		if err != nil {
			return err
		}
		defer taken.Release()
		n.remember(nodefile.Left{VNIs: []uint32{7, 8, 9, 77}})
		c, err := control.ParseNetwork([]byte(`{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan","VNI":77}}`))
		if err != nil {
			return err
		}
		if err := n.takeDevice(t.Context(), c); err != nil {
			return err
		}
		if n.device.VNI != 77 || !slices.Equal(n.left.VNIs, []uint32{77}) {
			t.Errorf("device %+v, leftovers %v", n.device, n.left)
		}
		before := n.device
		if err := n.takeDevice(t.Context(), c); err != nil || n.device != before {
			t.Errorf("the next session has claim %+v, %v; want the same", n.device, err)
		}
		c.Backend.VNI = 8
		if err := n.takeDevice(t.Context(), c); !errors.As(err, new(*claim.ServedError)) || n.device != nil {
			t.Errorf("the device of another: %v, %+v", err, n.device)
		}
		return nil
	})
	if got := ns.Run("ip", "-br", "link", "show", "type", "vxlan"); strings.Contains(got, "flannel.7") || strings.Count(got, "flannel.") != 2 {
		t.Errorf("links %q: want 7 to go, 8 to stay with its daemon, 9 because overlayd has not made it", got)
	}
	if log.count("overlay of the last network config is not removed") != 1 || log.count("removed what the last network config left") != 1 {
		t.Errorf("log:\n%s", log.text())
	}
}
