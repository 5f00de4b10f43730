package carrier

import (
	"bytes"
	"slices"
	"testing"

	"github.com/overlayd/overlayd/dataplane/packettest"
	"github.com/overlayd/overlayd/encap"
)

func TestCutter(t *testing.T) {
	datagram := func(n int) []byte {
		return append(make([]byte, encap.HeaderLen), packettest.UDP(podA, podB, 1, 2, make([]byte, n-encap.HeaderLen-28))...)
	}
	batch := slices.Concat(datagram(500), datagram(500), datagram(300))
	super := datagram(2500)
	for name, test := range map[string]struct {
		b       []byte
		gro     int
		lengths []int
		gsoSize uint16
	}{
		"one":                         {datagram(500), 0, []int{500}, 0},
		"one of the length":           {datagram(500), 500, []int{500}, 0},
		"empty":                       {nil, 0, []int{0}, 0},
		"giant":                       {super, 0, []int{2500}, 0},
		"batch":                       {batch, 500, []int{500, 500, 300}, 0},
		"superpacket":                 {super, 1000, []int{2500}, 1000},
		"negative":                    {batch, -1, []int{1300}, 0},
		"no header":                   {make([]byte, 30), 10, []int{10, 10, 10}, 0},
		"no IP":                       {make([]byte, 90), 30, []int{30, 30, 30}, 0},
		"claims more than is there":   {super[:2000], 900, []int{900, 900, 200}, 0},
		"claims less than there is":   {append(slices.Clone(super), 0), 1000, []int{1000, 1000, 501}, 0},
		"datagrams with padding":      {append(datagram(500), make([]byte, 600)...), 550, []int{550, 550}, 0},
		"length as good as the whole": {batch, 1299, []int{1299, 1}, 0},
	} {
		var c cutter
		c.init(test.b, test.gro)
		var lengths []int
		var all []byte
		for c.next() {
			lengths = append(lengths, len(c.Buf))
			all = append(all, c.Buf...)
		}
		if !slices.Equal(lengths, test.lengths) || c.Offload.Size != test.gsoSize || !bytes.Equal(all, test.b) {
			t.Errorf("%s: cut into %v with segments of %d, want %v and %d", name, lengths, c.Offload.Size, test.lengths, test.gsoSize)
		}
	}
}
