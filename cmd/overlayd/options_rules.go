package main

import (
	"fmt"
	"time"

	"github.com/spf13/pflag"
)

// ruleOptions say what is done to packets beside carrying them.
type ruleOptions struct {
	ipMasq           bool
	ipMasqNotRandom  bool
	iptablesResync   int
	iptablesForward  bool
	ipBlackholeRoute bool
}

func (o *ruleOptions) register(f *pflag.FlagSet) {
	f.BoolVar(&o.ipMasq, "ip-masq", false, "masquerade what leaves the overlay network")
	f.BoolVar(&o.ipMasqNotRandom, "ip-masq-fully-random-disable", false, "let masquerading keep source ports where it can, instead of choosing them at random")
	f.BoolVar(&o.iptablesForward, "iptables-forward-rules", true, "accept packets from and to the overlay network in FORWARD, whatever its policy")
	f.IntVar(&o.iptablesResync, "iptables-resync", 5, "seconds between checks of rules and routes that the kernel gives no notice of")
	f.BoolVar(&o.ipBlackholeRoute, "ip-blackhole-route", false, "drop what is sent to the own subnet and to none of its pods, instead of letting it out")
}

// maxResync is a day in seconds.
const maxResync = 24 * 60 * 60

func (o *ruleOptions) check(p *problems) {
	if o.iptablesResync < 1 || o.iptablesResync > maxResync {
		p.bad("iptables-resync", o.iptablesResync, fmt.Sprintf("want seconds, from 1 to %d", maxResync))
	}
}

func (o *ruleOptions) resync() time.Duration { return time.Duration(o.iptablesResync) * time.Second }
