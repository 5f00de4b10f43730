// Command overlayd-capture decodes the stream of packets that overlayd sends to `overlayd capture` and `overlayd trace`:
// from standard input to standard output, to pcapng or to lines of text. It is a program of its own because it links
// gopacket, whose tables cost the daemon 6 MB, and because it needs no right at all.
//
//	curl --unix-socket /run/flannel/subnet.env.sock http://overlayd/v1/capture | overlayd-capture > overlay.pcapng
package main

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/cmd/internal/stream"
)

func main() {
	text := flag.Bool("text", false, "print a line for each packet, instead of pcapng")
	flag.Usage = func() {
		fmt.Fprintf(os.Stderr, "Decodes the stream of packets on standard input, which overlayd capture and overlayd trace do for you.\n\n")
		flag.PrintDefaults()
	}
	flag.Parse()
	// Ctrl-C is for whoever asked the daemon: it ends the stream, and with it this program.
	signal.Ignore(unix.SIGINT, unix.SIGTERM)
	if err := run(os.Stdin, os.Stdout, os.Stderr, *text); err != nil {
		fmt.Fprintf(os.Stderr, "overlayd: %v\n", err)
		os.Exit(1)
	}
}

// sink takes the packets of a stream.
type sink interface {
	Packet(p *stream.Packet) error
	// Flush writes what is kept back, because nothing more comes for now.
	Flush() error
	// Close writes the last.
	Close(lost uint64) error
}

// inputSize is how much is read at once, in bytes.
const inputSize = 64 << 10

// run decodes a stream, and says on notes how much it was. What was decoded before an error is written.
func run(in io.Reader, out, notes *os.File, text bool) error {
	r := bufio.NewReaderSize(in, inputSize)
	s, err := stream.NewReader(r)
	if err != nil {
		return err
	}
	var to sink
	if text {
		to = newTrace(out)
	} else if to, err = newFile(out, &s.Hello); err != nil {
		return named(out, err)
	}
	n, err := copyPackets(s, to, r)
	if errors.Is(err, errWrite) {
		return named(out, err)
	}
	if cerr := to.Close(s.Lost); cerr != nil {
		return named(out, cerr)
	}
	packets := "packets"
	if n == 1 {
		packets = "packet"
	}
	fmt.Fprintf(notes, "%d %s captured, %d lost because they came faster than they were read\n", n, packets, s.Lost)
	return err
}

// errWrite marks what the output refuses.
var errWrite = errors.New("write")

// copyPackets moves the packets of a stream to a sink.
func copyPackets(s *stream.Reader, to sink, r *bufio.Reader) (n uint64, err error) {
	var p stream.Packet
	for {
		if r.Buffered() == 0 {
			if err := to.Flush(); err != nil {
				return n, errors.Join(errWrite, err)
			}
		}
		if err := s.Next(&p); err == io.EOF {
			return n, nil
		} else if err != nil {
			return n, err
		}
		if err := to.Packet(&p); err != nil {
			return n, errors.Join(errWrite, err)
		}
		n++
	}
}

// named returns an error of the output with the name of that.
func named(out *os.File, err error) error {
	cause := err
	if p := new(os.PathError); errors.As(err, &p) {
		cause = p.Err
	}
	name, lerr := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", out.Fd()))
	if lerr != nil {
		name = out.Name()
	}
	return fmt.Errorf("write %s: %w", name, cause)
}
