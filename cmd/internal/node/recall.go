package node

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane/pace"
	"github.com/overlayd/overlayd/dataplane/subnetfile"
)

// The kernel's dataplane goes on without a store. So does that of a daemon that starts, or whose session has ended: the node file has the network config, and
// the leases file the leases.

// silentError says that the store does not answer.
type silentError struct{ error }

// Unwrap returns the error of the store.
func (e silentError) Unwrap() error { return e.error }

// useConfig notes the config of the session that begins, or that goes on with another one.
func (n *Network) useConfig(c control.Network) {
	text, _ := json.Marshal(c)         // never fails: numbers, and addresses that are text
	_ = n.file.UseConfig(string(text)) // settleFile tries again, and warns
}

// recall returns the config of the last session, for when the store does not answer. If no such config is known, it returns the error silent.
func (n *Network) recall(ctx context.Context, silent error) (control.Network, error) {
	last := n.lastConfig()
	if last == (control.Network{}) {
		return last, silent
	}
	if len(n.news(pace.Notice{Key: "last config", Text: control.Kind(silent)})) > 0 {
		n.log.InfoContext(ctx, "the store does not give the network config yet: going on with that of the last session", "err", silent)
	}
	n.recalled = true
	return last, nil
}

// lastConfig returns the config of the last session, which this process or the one before has run. It returns the zero Network if no such config is known,
// or this node's subnets do not fit it.
func (n *Network) lastConfig() (last control.Network) {
	text := n.file.LastConfig()
	if text == "" {
		return last
	}
	in := json.NewDecoder(strings.NewReader(text))
	in.DisallowUnknownFields() // of a later version
	if err := in.Decode(&last); err != nil {
		n.warnOnce("the network config of the last session is not known", fmt.Errorf("node file: %w", err))
		return control.Network{}
	}
	own, err := subnetfile.Read(n.subnetFile)
	if err != nil || len(own) == 0 || unfit(last, own) != nil || n.refused.of(last) != nil {
		return control.Network{}
	}
	return last
}

// askConfig asks the store for the config. It does not wait for long if the one of the last session will do until the store answers.
func (n *Network) askConfig(ctx context.Context) (control.Network, error) {
	if !n.outdated && n.lastConfig() != (control.Network{}) {
		soon, cancel := context.WithTimeout(ctx, askAgain/2)
		defer cancel()
		ctx = soon
	}
	return n.store.Network(ctx)
}
