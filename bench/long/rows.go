package main

import (
	"fmt"
	"time"
)

// row is one thing to run.
type row struct {
	name  string
	pkg   string
	takes time.Duration // roughly, with the build
	env   []string
	args  []string // of go test
}

// rows lists everything there is to run.
func rows() []row {
	var list []row
	add := func(name, pkg string, takes time.Duration, env []string, args ...string) {
		list = append(list, row{name, pkg, takes, env, args})
	}
	for _, run := range []string{"default_offloads", "damage"} {
		add("soak: "+run, "./cmd/overlayd", 150*time.Second, []string{"OVERLAYD_SOAK=2m"}, "-run", "^TestSoak$/^"+run+"$")
	}
	add("configs: what flanneld serves", "./cmd/overlayd", 60*time.Second, []string{"OVERLAYD_CONFIGS=all"}, "-parallel", "4", "-run", "^TestConfigs$")
	add("chaos: connections to etcd cut at random", "./control/etcd", 70*time.Second, nil, "-run", "^TestConnectionsCutAtRandom$", "-count", "15")
	add("chaos: etcd half open, leader killed", "./control/etcd", 90*time.Second, nil, "-run", "^Test(HalfOpenConnection|LeaderKilled)$", "-count", "3")
	add("moves: addresses change hands at random", "./cmd/overlayd", 60*time.Second, []string{"OVERLAYD_MOVES=40"}, "-run", "^TestMovesAtRandom$")
	add("repeat: controller, RIB, allocation", "./control", 60*time.Second, nil, "-race", "-count", "20")
	add("repeat: datapath in memory", "./encap", 60*time.Second, nil, "-race", "-count", "20")
	add("repeat: kernel dataplane under churn", "./dataplane/kernel", 60*time.Second, nil, "-run", "Churn|Repairs|Restores", "-count", "5")
	add("repeat: masquerade rules restored", "./dataplane/masq", 90*time.Second, nil, "-run", "Restores|Takeover|Switch", "-count", "3")
	for _, f := range []struct{ pkg, target string }{
		{"./control", "FuzzParseNetwork"}, {"./control", "FuzzFollow"}, {"./control", "FuzzParseKey"}, {"./control", "FuzzParseLease"},
		{"./dataplane/nft", "FuzzParse"}, {"./dataplane/kernel", "FuzzParse"}, {"./dataplane/fib", "FuzzTable"},
		{"./dataplane/userspace", "FuzzReceive"}, {"./dataplane/hostroute", "FuzzConcerns"},
		{"./encap", "FuzzPutTooBig"}, {"./encap", "FuzzDecap"}, {"./encap", "FuzzParseIP"}, {"./encap", "FuzzSum"},
		{"./encap", "FuzzSplit"}, {"./encap", "FuzzSplitCoalesce"}, {"./encap", "FuzzCoalesce"},
	} {
		add("fuzz: "+f.pkg+" "+f.target, f.pkg, 70*time.Second, nil,
			"-run", "^$", "-fuzz", "^"+f.target+"$", "-fuzztime", "45s", "-fuzzminimizetime", "10x")
	}
	return list
}

// command is what go is called with.
func (r row) command(seed uint64) []string {
	args := append([]string{"test"}, r.args...)
	// A hang is longer than any row takes.
	return append(args, "-shuffle", fmt.Sprint(seed), "-timeout", (10*time.Minute + 2*r.takes).String(), r.pkg)
}
