package main

import (
	"errors"
	"os"

	"github.com/spf13/cobra"

	"github.com/overlayd/overlayd/cmd/internal/stream"
	"github.com/overlayd/overlayd/cmd/internal/tap"
)

const longCapture = `Writes the inner packets of the userspace dataplane to a pcapng file. The file has one interface for
each outcome: tx, rx, and drop: with the reason. A superpacket is one packet.

Ctrl-C ends the capture. It then prints how many packets were captured, and how many are missing
because they came faster than they were read: forwarding never waits for a capture.

PEER limits it to one peer: its name, subnet, VTEP or an address in its subnet. Run it as root.`

const captureExamples = `  overlayd capture host-b -w host-b.pcapng
  overlayd capture --drops -w - | tcpdump -r -
  overlayd capture -w - | wireshark -k -i -`

// captureFlags are the flags of `overlayd capture` and `overlayd trace`.
type captureFlags struct {
	stream.Query
	file string
}

// newCaptureCommand makes `overlayd capture`.
func newCaptureCommand() *cobra.Command {
	o := new(captureFlags)
	cmd := &cobra.Command{Use: "capture [PEER] [flags]", Short: "Write packets, also dropped ones, to a pcapng file", Long: longCapture, Example: captureExamples}
	f := cmd.Flags()
	f.StringVarP(&o.file, "write", "w", "-", "file to write to; - is standard output")
	f.IntVarP(&o.Snap, "snap", "s", 0, "bytes of each packet; all unless it is given")
	o.register(cmd)
	return cmd
}

// traceSnap is enough for all headers that a line shows.
const traceSnap = 192

// newTraceCommand makes `overlayd trace`.
func newTraceCommand() *cobra.Command {
	o := &captureFlags{file: "-", Query: stream.Query{Snap: traceSnap}}
	cmd := &cobra.Command{Use: "trace [PEER] [flags]", Short: "Print a line for each packet: what became of it, peer, addresses",
		Long: `Prints one line for each packet of the userspace dataplane: time, tx, rx or drop: with the reason,
peer, addresses, protocol, length. Ctrl-C ends it. PEER limits it to one peer: its name, subnet, VTEP
or an address in its subnet. Run it as root.`}
	o.register(cmd, "--text")
	return cmd
}

// register adds what both commands have. args are those of the program that decodes.
func (o *captureFlags) register(cmd *cobra.Command, args ...string) {
	f := cmd.Flags()
	f.SortFlags = false
	f.BoolVar(&o.Drops, "drops", false, "only packets that were dropped")
	f.IntVarP(&o.Count, "count", "c", 0, "end after that many packets")
	registerAdmin(f)
	cmd.ValidArgsFunction = completePeer
	cmd.RunE = func(cmd *cobra.Command, peers []string) error {
		if err := o.check(cmd, peers); err != nil {
			return err
		}
		program, err := tap.FindProgram()
		if err != nil {
			return err
		}
		c, err := adminClient(f)
		if err != nil {
			return err
		}
		run := tap.Client{Admin: c, Query: o.Query, Program: program, Args: args, Open: o.open}
		return run.Run(cmd.Context())
	}
}

// check checks flags and arguments.
func (o *captureFlags) check(cmd *cobra.Command, peers []string) error {
	switch {
	case len(peers) > 1:
		return usagef("%q: want one peer at most", peers[1])
	case len(peers) == 1 && peers[0] == "":
		return usagef(`"": want a peer, or none for all`)
	case cmd.Flags().Changed("count") && o.Count < 1:
		return usagef("-c %d: want 1 packet or more", o.Count)
	case cmd.Flags().Changed("snap") && (o.Snap < 1 || o.Snap > stream.MaxSnap):
		return usagef("-s %d: want 1 to %d bytes; packets are whole without it", o.Snap, stream.MaxSnap)
	case o.file == "":
		return usagef(`-w "": want a file, or - for standard output`)
	case o.file == "-" && cmd.Name() == "capture" && isTerminal(os.Stdout):
		return usagef("standard output is a terminal: want -w FILE, or overlayd trace for text")
	}
	if len(peers) == 1 {
		o.Peer = peers[0]
	}
	return nil
}

// open opens what is written to. A capture may hold secrets of others: it is its owner's.
func (o *captureFlags) open() (*os.File, error) {
	if o.file == "-" {
		return os.Stdout, nil
	}
	f, err := os.OpenFile(o.file, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if p := new(os.PathError); errors.As(err, &p) {
		return nil, usagef("-w %s: %w", o.file, p.Err)
	}
	return f, err
}
