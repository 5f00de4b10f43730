package encap

import "testing"

// TestHotPathDoesNotAllocate runs what a packet meets in either direction; what
// coalescing does to many of them is in TestCoalesceDoesNotAllocate.
func TestHotPathDoesNotAllocate(t *testing.T) {
	tmpl := NewTemplate(1, vtepB, vtepA)
	buf := make([]byte, HeaderLen+1500)
	var hdr [MaxSplitHeader]byte
	limit := RunLimit{Datagrams: MaxRunDatagrams, Bytes: MaxRunBytes}
	for name, in := range inners(t, 1000) {
		datagram := buf[:HeaderLen+copy(buf[HeaderLen:], in.packet)]
		for step, f := range map[string]func(){
			"send": func() {
				dst, etherType, ok := Destination(in.packet)
				if !ok || !dst.IsValid() {
					t.Error("no destination")
				}
				tmpl.Put(datagram, etherType)
				if SourcePort(QuickHash(in.packet), 32768, 60999) < 32768 {
					t.Error("source port out of range")
				}
			},
			"receive": func() {
				if _, err := ParseVXLAN(datagram); err != nil {
					t.Error(err)
				}
				if _, _, _, err := ParseEthernet(datagram[VXLANLen:]); err != nil {
					t.Error(err)
				}
				var ip IP
				if err := ParseIP(datagram[HeaderLen:], &ip); err != nil {
					t.Error(err)
				}
				FlowHash(datagram[HeaderLen:], &ip)
				IsPartial(datagram[HeaderLen:], &ip)
				CompleteChecksum(datagram[HeaderLen:], &ip)
				VerifyChecksum(datagram[HeaderLen:], &ip)
			},
			"split": func() {
				var s Splitter
				if s.InitTCP(in.packet, 400) != nil && s.InitUDP(in.packet, 400) != nil {
					t.Error("nothing to split")
				}
				for s.RunLen(limit) > 0 {
					s.Next(hdr[:])
				}
			},
		} {
			tmpl.Put(datagram, in.etherType)
			if n := testing.AllocsPerRun(100, f); n != 0 {
				t.Errorf("%s %s: %v allocations", step, name, n)
			}
		}
	}
}

// TestAnswersDoNotAllocate runs what only some packets meet.
func TestAnswersDoNotAllocate(t *testing.T) {
	answer := make([]byte, MaxTooBig)
	c := NewCoalescer(true, true)
	for name, in := range inners(t, 1000) {
		if n := testing.AllocsPerRun(100, func() {
			var ip IP
			if err := ParseIP(in.packet, &ip); err != nil {
				t.Error(err)
			}
			DecapECN(in.packet, PacketECN(in.packet))
			PutTooBig(answer, in.packet, &ip, ip.Dst, 1400)
			if o, ok := PartialOffload(in.packet, &ip); !ok || !c.Add(in.packet, &ip, o) || len(c.Flush()) != 1 {
				t.Error("not taken")
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}
