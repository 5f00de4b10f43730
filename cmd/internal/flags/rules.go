package flags

import (
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"github.com/overlayd/overlayd/cmd/internal/parts"
)

// ruleFlags say what happens to packets besides being carried.
type ruleFlags struct {
	ipMasq           bool
	ipMasqNotRandom  bool
	iptablesResync   int
	iptablesForward  bool
	ipBlackholeRoute bool
	removeOnExit     bool
}

func (o *ruleFlags) register(f *pflag.FlagSet) {
	f.BoolVar(&o.ipMasq, "ip-masq", false, "masquerade traffic that leaves the overlay network")
	f.BoolVar(&o.ipMasqNotRandom, "ip-masq-fully-random-disable", false, "let masquerading keep source ports if it can, instead of choosing them at random")
	f.BoolVar(&o.iptablesForward, "iptables-forward-rules", true, "accept packets from and to the overlay network in FORWARD, whatever its policy")
	f.BoolVar(&o.removeOnExit, "remove-rules-on-exit", false, "remove the traffic rules when the daemon stops; otherwise they stay, as devices and routes do")
	f.IntVar(&o.iptablesResync, "iptables-resync", 5, "seconds between checks of rules and routes whose changes the kernel does not report")
	f.BoolVar(&o.ipBlackholeRoute, "ip-blackhole-route", false, "drop traffic to addresses of this node's subnet that no pod has")
}

// maxResync is a day in seconds.
const maxResync = 24 * 60 * 60

// check bounds the period: with 0 flanneld checks without a pause.
func (o *ruleFlags) check(p *problems) {
	if s := min(max(o.iptablesResync, 1), maxResync); s != o.iptablesResync {
		p.warn(fmt.Sprintf("--iptables-resync %d is taken for %d", o.iptablesResync, s), fmt.Sprintf("seconds, from 1 to %d", maxResync))
		o.iptablesResync = s
	}
}

func (o *ruleFlags) config() parts.RuleConfig {
	return parts.RuleConfig{
		Masquerade: o.ipMasq,
		KeepPorts:  o.ipMasqNotRandom,
		Forward:    o.iptablesForward,
		Blackhole:  o.ipBlackholeRoute,
		Remove:     o.removeOnExit,
		Resync:     time.Duration(o.iptablesResync) * time.Second,
	}
}
