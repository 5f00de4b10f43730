package carrier_test

import (
	"bytes"
	"fmt"
	"net/netip"
	"testing"

	"github.com/overlayd/overlayd/dataplane/carrier"
	"github.com/overlayd/overlayd/dataplane/carrier/carriertest"
)

// TestWireConforms runs the suites of sender and receiver over the wire in memory.
func TestWireConforms(t *testing.T) {
	addr := netip.MustParseAddrPort("192.0.2.1:8472")
	for _, batches := range []bool{false, true} {
		t.Run(fmt.Sprintf("batches=%t", batches), func(t *testing.T) {
			var w carrier.Wire
			var sent [][]byte
			w.OnDatagram = func(b []byte, to netip.Addr) {
				if sent = append(sent, bytes.Clone(b)); to != addr.Addr() {
					t.Errorf("sent to %s, want %s", to, addr.Addr())
				}
			}
			carriertest.Sender(t, w.Sender(batches), &carrier.Entry{Peer: carrier.NewPeer(addr)}, 64, batches, func() (first []byte) {
				if len(sent) > 0 {
					first, sent = sent[0], sent[1:]
				}
				return first
			})
			carriertest.Receiver(t, w.Receiver(), func(b []byte) {
				w.LoadDatagrams(carrier.Arrival{Payload: b, From: addr.Addr()})
				w.Rewind(1)
			})
		})
	}
}
