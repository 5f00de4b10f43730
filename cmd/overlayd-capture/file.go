package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"

	"github.com/overlayd/overlayd/cmd/internal/stream"
)

// file writes pcapng. The verdict of a packet is the interface that it has: NgWriter writes no options of packets, and
// every reader can filter by interface. tcpdump refuses a file whose interfaces differ in link type or snap length.
type file struct {
	framer
	w     *pcapgo.NgWriter
	begin time.Time
	count []uint64 // packets of each interface
}

// newFile writes the header of a file with an interface for each verdict.
func newFile(out io.Writer, h *stream.Hello) (*file, error) {
	options := pcapgo.NgWriterOptions{SectionInfo: pcapgo.NgSectionInfo{
		Application: strings.TrimSpace("overlayd " + h.Version),
		Comment:     fmt.Sprintf("overlayd capture%s on %s", h.Filter, h.Host),
	}}
	intf := func(verdict string) pcapgo.NgInterface {
		return pcapgo.NgInterface{Name: verdict, LinkType: layers.LinkTypeEthernet}
	}
	w, err := pcapgo.NewNgWriterInterface(out, intf(h.Verdicts[0]), options)
	if err != nil {
		return nil, err
	}
	for _, verdict := range h.Verdicts[1:] {
		if _, err := w.AddInterface(intf(verdict)); err != nil {
			return nil, err
		}
	}
	return &file{w: w, begin: time.Now(), count: make([]uint64, len(h.Verdicts))}, nil
}

// Packet implements sink.
func (f *file) Packet(p *stream.Packet) error {
	i := int(p.Packet.Verdict)
	f.count[i]++
	b, length := f.frame(p)
	return f.w.WritePacket(gopacket.CaptureInfo{Timestamp: time.Unix(0, p.Time), CaptureLength: len(b), Length: length, InterfaceIndex: i}, b)
}

// Flush implements sink.
func (f *file) Flush() error { return f.w.Flush() }

// Close implements sink. Which verdict a lost packet had is not known: all are counted at the first interface.
func (f *file) Close(lost uint64) error {
	for i, n := range f.count {
		stats := pcapgo.NgInterfaceStatistics{LastUpdate: time.Now(), StartTime: f.begin, EndTime: time.Now(), PacketsReceived: n, PacketsDropped: pcapgo.NgNoValue64}
		if i == 0 {
			stats.PacketsReceived += lost
			stats.PacketsDropped = lost
		}
		if err := f.w.WriteInterfaceStats(i, stats); err != nil {
			return err
		}
	}
	return f.w.Flush()
}
