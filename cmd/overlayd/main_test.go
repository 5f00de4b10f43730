package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/control/etcd/embedded"
	"github.com/overlayd/overlayd/control/etcd/etcdtest"
)

// The test binary is also the programs that the tests run: overlayd itself, so
// that -race and coverage reach the daemon, and an etcd server.
const (
	asOverlayd = "OVERLAYD_TEST_AS_OVERLAYD"
	asEtcd     = "OVERLAYD_TEST_AS_ETCD" // its value: data directory, space, listen URL
)

// scratch names a directory of all tests together.
const scratch = "OVERLAYD_TEST_SCRATCH"

func TestMain(m *testing.M) {
	if os.Getenv(asOverlayd) != "" {
		if os.Getenv(asGauged) != "" {
			onSignal(unix.SIGWINCH, gauge)
		}
		main()
	}
	if task := os.Getenv(asLocalUser); task != "" {
		os.Exit(localUser(task))
	}
	etcdtest.Main()
	if v := os.Getenv(asEtcd); v != "" {
		os.Exit(runEtcd(v))
	}
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	// Most tests wait most of the time: more of them run at once than there are processors.
	given := false
	flag.Parse()
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		flag.Set("test.parallel", "6")
	}
	dir, err := os.MkdirTemp("", "overlayd-test")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	os.Setenv(scratch, dir)
	return m.Run()
}

func runEtcd(arg string) int {
	var dir, listen string
	if _, err := fmt.Sscan(arg, &dir, &listen); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
	defer stop()
	s, err := embedded.Start(ctx, embedded.Config{Dir: dir, ListenClient: listen, Log: slog.Default(), NoFsync: true})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	<-ctx.Done()
	s.Stop()
	return 0
}
