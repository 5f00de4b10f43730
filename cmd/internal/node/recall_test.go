package node

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/overlayd/overlayd/cmd/internal/nodefile"
	"github.com/overlayd/overlayd/control"
)

// TestRecall: while the store is silent the config of the last session is used, unless the node's subnets do not fit it, nobody can read it, or the daemon is
// to end.
func TestRecall(t *testing.T) {
	needUnderlay(t)
	for name, c := range map[string]struct {
		subnet string
		change func(n *Network, end context.CancelFunc)
		used   bool
	}{
		"as it was":                   {"10.5.7.1/24", func(*Network, context.CancelFunc) {}, true},
		"the daemon is to end":        {"10.5.7.1/24", func(_ *Network, end context.CancelFunc) { end() }, false},
		"no config is known":          {"10.5.7.1/24", func(n *Network, _ context.CancelFunc) { n.file.UseConfig("") }, false},
		"a config of a later version": {"10.5.7.1/24", func(n *Network, _ context.CancelFunc) { n.file.UseConfig(`{"New":1}`) }, false},
		"cut off":                     {"10.5.7.1/24", func(n *Network, _ context.CancelFunc) { n.file.UseConfig(n.file.LastConfig()[:9]) }, false},
		"another subnet":              {"10.6.7.1/24", func(*Network, context.CancelFunc) {}, false},
		"no dataplane can carry it":   {"10.5.7.1/24", func(n *Network, _ context.CancelFunc) { n.refused = refusal{n.lastConfig(), errDown, time.Now()} }, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			want, err := control.ParseNetwork([]byte(w.config(0, "")))
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(w.cfg.SubnetFile, []byte("FLANNEL_SUBNET="+c.subnet+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			n, _ := w.waiting()
			n.file = nodefile.Unclaimed(w.cfg.SubnetFile)
			defer n.file.Release()
			n.useConfig(want)
			w.memory("").SetDown(errDown)
			ctx, end := context.WithCancel(t.Context())
			defer end()
			c.change(n, end)
			switch got, err := n.usableConfig(ctx); {
			case c.used && (err != nil || got != want):
				t.Errorf("got %+v, %v, want %+v", got, err, want)
			case !c.used && err == nil:
				t.Errorf("got %+v, want an error", got)
			}
		})
	}
}
