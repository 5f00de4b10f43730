package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/bench/compare/agent"
)

func main() {
	if err := dispatch(os.Args[1:]); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "compare:", err)
		}
		os.Exit(1)
	}
}

// dispatch tells the comparison from the programs that it runs in its hosts.
func dispatch(args []string) error {
	switch {
	case len(args) == 1 && args[0] == agent.Argument:
		return agent.Run()
	case len(args) == 8 && args[0] == copierCommand:
		return runCopier(args[1:])
	case len(args) == 3 && args[0] == etcdCommand:
		return runEtcd(args[1], args[2], 0)
	case len(args) == 4 && args[0] == etcdCommand:
		peers, err := strconv.Atoi(args[3])
		if err != nil {
			return fmt.Errorf("peers: %w", err)
		}
		return runEtcd(args[1], args[2], peers)
	}
	o, err := parseOptions(args)
	if err != nil {
		return err
	}
	return compare(o, args)
}

// compare runs a comparison and shows it.
func compare(o options, args []string) (err error) {
	if os.Geteuid() != 0 {
		return errors.New("run as root: it makes network namespaces")
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGPIPE)
	defer stop()
	work, err := newWorkDir()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, work.remove()) }()
	r := &run{options: o, out: os.Stderr, dir: work.path, start: time.Now()}
	list := candidates(o.overlayd, kernelVersion(), o.tiers)
	if o.before != "" {
		list = append(list, earlier(o.before, o.tiers)...)
	}
	rep, err := r.all(ctx, list)
	if err != nil {
		return err
	}
	rep.Command = strings.Join(append([]string{"compare"}, args...), " ")
	fmt.Println(rep.text())
	if o.output == "" {
		return nil
	}
	return rep.write(o.output)
}
