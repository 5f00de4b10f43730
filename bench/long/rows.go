package main

import (
	"fmt"
	"os/exec"
	"slices"
	"strings"
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

// rows lists everything there is to run, in the module whose directory is root.
func rows(root string) (list []row, err error) {
	add := func(name, pkg string, takes time.Duration, env []string, args ...string) {
		list = append(list, row{name, pkg, takes, env, args})
	}
	race := []string{"CGO_ENABLED=1"} // the race detector needs it
	for _, run := range []string{"default_offloads", "damage"} {
		add("soak: "+run, "./cmd/overlayd", 150*time.Second, []string{"OVERLAYD_SOAK=2m"}, "-run", "^TestSoak$/^"+run+"$")
	}
	add("endurance: ten hosts for ten minutes", "./cmd/overlayd", 11*time.Minute, []string{"OVERLAYD_ENDURANCE=10m"}, "-v", "-run", "^TestEndurance$")
	add("endurance: ten hosts for half an hour", "./cmd/overlayd", 31*time.Minute, []string{"OVERLAYD_ENDURANCE=30m"}, "-v", "-run", "^TestEndurance$")
	add("configs: what flanneld serves", "./cmd/overlayd", 60*time.Second, []string{"OVERLAYD_CONFIGS=all"}, "-parallel", "4", "-run", "^TestConfigs$")
	add("matrix: 100 MB each way", "./cmd/overlayd", 90*time.Second, []string{"OVERLAYD_TRANSFER=104857600"}, "-run", "^Test(Matrix|Container|UserNamespace)$")
	add("leaks: a million datagrams in two networks", "./cmd/overlayd", 60*time.Second, []string{"OVERLAYD_FLOOD=250000"}, "-run", "^TestNetworksDoNotLeak$")
	add("seen: 10 000 peers", "./cmd/overlayd", 160*time.Second, []string{"OVERLAYD_SEEN=10000"}, "-v", "-run", "^TestManyPeersAreSeen$")
	add("scale: 25 000 leases", "./cmd/overlayd", 60*time.Second, []string{"OVERLAYD_SCALE=25000"}, "-run", "^TestScale$")
	add("chaos: connections to etcd cut at random", "./control/etcd", 70*time.Second, nil, "-run", "^TestConnectionsCutAtRandom$", "-count", "15")
	add("histories: leases under a checker", "./control/etcd/history", 6*time.Minute, []string{"OVERLAYD_HISTORIES=200"}, "-run", "^TestHistories$")
	add("histories: seeded bugs are found", "./control/etcd/history", 8*time.Minute, []string{"OVERLAYD_HISTORIES=200"}, "-run", "^TestSeededBugs$")
	add("chaos: etcd half open, leader killed", "./control/etcd", 90*time.Second, nil, "-run", "^Test(HalfOpenConnection|LeaderKilled)$", "-count", "3")
	add("faults of etcd: this module's", "./control/etcd", 2*time.Minute, []string{"OVERLAYD_FAULT=60s"}, "-parallel", "20", "-run", "^TestFaults$")
	add("faults of etcd: Debian's", "./control/etcd", 2*time.Minute, []string{"OVERLAYD_FAULT=60s"}, "-parallel", "20", "-tags", "oldetcd", "-run", "^TestOtherEtcdFaults$")
	add("traffic beside faults of etcd: this module's", "./cmd/overlayd", 3*time.Minute, []string{"OVERLAYD_FAULT=60s"}, "-parallel", "20", "-run", "^TestStoreFaults$")
	add("traffic beside faults of etcd: Debian's", "./cmd/overlayd", 3*time.Minute, []string{"OVERLAYD_FAULT=60s"}, "-parallel", "20", "-tags", "oldetcd", "-run", "^TestOtherEtcdStoreFaults$")
	add("moves: addresses change hands at random", "./cmd/overlayd", 60*time.Second, []string{"OVERLAYD_MOVES=40"}, "-run", "^TestMovesAtRandom$")
	add("swaps: flanneld and both dataplanes at random", "./cmd/overlayd", 150*time.Second, []string{"OVERLAYD_SWAPS=50"},
		"-tags", "kube,flannel,oldetcd", "-run", "^TestFlanneldSwapsAtRandom$")
	add("repeat: RIB, allocation", "./control", 60*time.Second, race, "-race", "-count", "20")
	add("repeat: controller", "./control/controller", 60*time.Second, race, "-race", "-count", "20")
	add("clones: of hosts that run, are stopped or dead", "./cmd/overlayd", 2*time.Minute, []string{"OVERLAYD_CLONES=all"}, "-run", "^TestClones$")
	add("disks: full and read-only for five minutes", "./cmd/overlayd", 6*time.Minute, []string{"OVERLAYD_DISKS=5m"}, "-parallel", "12", "-run", "^TestDisks$")
	add("drift: a fault every four seconds", "./cmd/overlayd", 220*time.Second, []string{"OVERLAYD_DRIFT=3m"}, "-parallel", "5", "-run", "^Test(Drift|TUNDeletedAgain)$")
	add("nine faults: named with probes every ten seconds", "./cmd/overlayd", 5*time.Minute, []string{"OVERLAYD_PROBES=10s"}, "-v", "-run", "^TestNineFaults$")
	add("100 000 junk keys", "./cmd/overlayd", time.Minute, []string{"OVERLAYD_JUNK=100000"}, "-v", "-run", "^TestJunkKeys$")
	add("100 000 keys that seem to be of clones", "./cmd/overlayd", time.Minute, []string{"OVERLAYD_JUNK=100000"}, "-v", "-run", "^TestJunkOfClones$")
	add("100 000 leases that are refused", "./cmd/overlayd", time.Minute, []string{"OVERLAYD_JUNK=100000"}, "-v", "-run", "^TestRefusedLeases$")
	add("quiet: ten minutes without a warning", "./cmd/overlayd", 11*time.Minute, []string{"OVERLAYD_QUIET=10m"}, "-v", "-run", "^TestQuiet$")
	add("mass loss: every lease at once", "./cmd/overlayd", 100*time.Second, []string{"OVERLAYD_LOSS=60s"}, "-parallel", "6", "-run", "^TestMassLoss$")
	add("replace: userspace and kernel daemons in a row", "./cmd/overlayd", 60*time.Second, []string{"OVERLAYD_REPLACEMENTS=20"}, "-run", "^TestReplace(UnderStream)?$")
	add("restarts: under a supervisor that keeps files", "./cmd/overlayd", 90*time.Second, []string{"OVERLAYD_RESTARTS=20"}, "-run", "^TestSupervised")
	add("crashes: 50 in each dataplane", "./cmd/overlayd", 90*time.Second, []string{"OVERLAYD_RESTARTS=50"}, "-run", "^TestSupervised$/killed")
	add("replace: a daemon of an earlier version", "./cmd/overlayd", 60*time.Second, []string{"OVERLAYD_UPGRADE=" + strings.Join(upgraded(), ",")},
		"-tags", "upgrade", "-run", "^TestReplaceVersion$")
	add("repeat: datapath in memory", "./encap", 60*time.Second, race, "-race", "-count", "20")
	add("repeat: kernel dataplane under churn", "./dataplane/kernel", 60*time.Second, nil, "-run", "Churn|Repairs|Restores", "-count", "5")
	add("repeat: masquerade rules restored", "./dataplane/masq", 90*time.Second, nil, "-run", "Restores|Takeover|Switch", "-count", "3")
	targets, err := fuzzTargets(root)
	for _, t := range targets {
		list = append(list, t.row())
	}
	return list, err
}

// upgraded returns the commits from which a running daemon is replaced: the first that knows the hand-over, and one from before.
func upgraded() []string {
	commits := []string{"5706a5c"}
	out, err := exec.Command("git", "log", "--diff-filter=A", "--format=%h", "--", ":/cmd/internal/handover/handover.go").Output()
	if added := strings.Fields(string(out)); err == nil && len(added) > 0 {
		commits = append(commits, added[len(added)-1])
	}
	return commits
}

// missing says why this clone cannot run the row; "": it can.
func (r row) missing() string {
	if !slices.Contains(r.args, "upgrade") {
		return ""
	}
	for _, commit := range upgraded() {
		if exec.Command("git", "cat-file", "-e", commit+"^{commit}").Run() != nil {
			return "this clone has no commit " + commit + ": git fetch --unshallow"
		}
	}
	return ""
}

// command is what go is called with.
func (r row) command(seed uint64) []string {
	args := append([]string{"test"}, r.args...)
	// A hang is longer than any row takes.
	return append(args, "-shuffle", fmt.Sprint(seed), "-timeout", (10*time.Minute + 2*r.takes).String(), r.pkg)
}
