//go:build kube

package kube_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/kube"
)

// asProbe makes the test binary a process that does what a daemon does with a Store,
// whose memory can be measured. Its value: kubeconfig, space, network config.
const asProbe = "OVERLAYD_TEST_AS_KUBE_PROBE"

// probe watches until its standard input ends, and prints when it knew all peers and what
// memory that took.
func probe() int {
	begin := time.Now()
	cfg := kube.Config{NodeName: "node-0", Log: slog.Default()}
	fmt.Sscan(os.Getenv(asProbe), &cfg.Kubeconfig, &cfg.NetConfigPath)
	ctx := context.Background()
	s, err := kube.Open(ctx, cfg)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	network, err := s.Network(ctx)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	rib := control.NewRIB(network)
	for u := range s.Watch(ctx) {
		if rib.Apply(u); u.Reset {
			leases, bad := rib.Len()
			peers, rejected := rib.Peers(control.Lease{PublicIP: u.Leases[0].PublicIP, Backend: u.Leases[0].Backend})
			fmt.Printf("leases=%d bad=%d peers=%d rejected=%d ms=%d %s\n", leases, bad, len(peers), len(rejected),
				time.Since(begin).Milliseconds(), memory("self"))
		}
	}
	return 0
}

// memory returns a process's present and greatest resident memory, in KiB.
func memory(pid string) string {
	text, err := os.ReadFile("/proc/" + pid + "/status")
	if err != nil {
		return err.Error()
	}
	var rss, peak int
	for line := range strings.Lines(string(text)) {
		fmt.Sscanf(line, "VmRSS: %d", &rss)
		fmt.Sscanf(line, "VmHWM: %d", &peak)
	}
	return fmt.Sprintf("rss=%d peak=%d", rss, peak)
}
