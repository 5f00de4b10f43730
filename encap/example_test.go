package encap_test

import (
	"encoding/hex"
	"fmt"

	"github.com/overlayd/overlayd/encap"
)

// A packet is put on the wire by writing the header of its VTEP into the
// headroom in front of it.
func ExampleTemplate() {
	remote, _ := encap.ParseMAC("0e:2a:00:00:00:02")
	local, _ := encap.ParseMAC("0e:2a:00:00:00:01")
	tmpl := encap.NewTemplate(1, remote, local)

	buf := make([]byte, encap.HeaderLen+1450) // the packet starts at HeaderLen
	tmpl.Put(buf, encap.EtherTypeIPv4)

	fmt.Println(hex.EncodeToString(buf[:encap.HeaderLen]))
	vni, err := encap.ParseVXLAN(buf)
	fmt.Println(vni, err)
	// Output:
	// 08000000000001000e2a000000020e2a000000010800
	// 1 <nil>
}

func ExampleParseIP() {
	packet, _ := hex.DecodeString("4500001c00000000" + "40110000" + "0a010102" + "0a010203" + // IPv4, protocol 17
		"0fa00035" + "0008ffff" + // UDP, port 4000 to 53
		"0000000000000000") // padding of a short Ethernet frame

	var ip encap.IP
	if err := encap.ParseIP(packet, &ip); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(ip.Src, ip.Dst, ip.Proto, ip.HeaderLen, ip.Len, len(packet))
	// Output: 10.1.1.2 10.1.2.3 17 20 28 36
}

func ExampleSplitter() {
	// 40 bytes of headers and 3000 of payload, to be split by 1410.
	packet := make([]byte, 40+3000)
	headers, _ := hex.DecodeString("45000be000014000" + "40060000" + "0a010102" + "0a010203" + // IPv4, 3040 bytes, ID 1
		"0fa00050" + "00000064" + "00000001" + "50180064" + "00000000") // TCP, sequence number 100, ACK and PSH
	copy(packet, headers)

	var s encap.Splitter
	if err := s.InitOffload(packet, encap.Offload{GSO: encap.GSOTCPv4, Size: 1410, CsumStart: 20}); err != nil {
		fmt.Println(err)
		return
	}
	hdr := make([]byte, encap.MaxSplitHeader)
	for {
		n, payload, ok := s.Next(hdr)
		if !ok {
			break
		}
		fmt.Printf("ID %x, sequence number %x, flags %x, %d+%d bytes\n", hdr[4:6], hdr[24:28], hdr[33], n, len(payload))
	}
	// Output:
	// ID 0001, sequence number 00000064, flags 10, 40+1410 bytes
	// ID 0002, sequence number 000005e6, flags 10, 40+1410 bytes
	// ID 0003, sequence number 00000b68, flags 18, 40+180 bytes
}

// What one receive brought is added, flushed, and written with one writev each.
func ExampleCoalescer() {
	// 3000 bytes of a connection, in segments of 1410.
	packet := make([]byte, 40+3000)
	headers, _ := hex.DecodeString("45000be000014000" + "40060000" + "0a010102" + "0a010203" +
		"0fa00050" + "00000064" + "00000001" + "50180064" + "00000000")
	copy(packet, headers)
	var s encap.Splitter
	if err := s.InitOffload(packet, encap.Offload{GSO: encap.GSOTCPv4, Size: 1410, CsumStart: 20}); err != nil {
		fmt.Println(err)
		return
	}

	c := encap.NewCoalescer(true, true)
	for range s.Segments() {
		segment := make([]byte, 1450)
		n, payload, _ := s.Next(segment)
		segment = segment[:n+copy(segment[n:], payload)]

		var ip encap.IP
		if err := encap.ParseIP(segment, &ip); err != nil {
			fmt.Println(err)
			return
		}
		c.Add(segment, &ip, encap.Offload{}) // nothing left to do: the checksum is complete
	}
	for _, item := range c.Flush() {
		fmt.Printf("%d bytes in %d parts, to be split by %d after a header of %d\n", item.Len, len(item.Parts), item.Size, item.HdrLen)
	}
	// Output: 3040 bytes in 3 parts, to be split by 1410 after a header of 40
}
