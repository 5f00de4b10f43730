package userspace

import "testing"

// TestOffloadsIn: the attributes of the log line are the names of the offloads.
func TestOffloadsIn(t *testing.T) {
	for _, c := range []struct {
		attrs []any
		want  Offloads
	}{
		{nil, 0},
		{[]any{"tun_vnet"}, 0},
		{[]any{"tun_vnet", false, "tun_mask", "0x0", "queues", 1, "coalesce", false, "udp_segment", int32(1), "udp_gro", false}, 0},
		{[]any{"tun_vnet", true, "tun_mask", "0x7", "queues", 2, "coalesce", true, "udp_segment", int32(64), "udp_gro", true, "tunnel", true}, AllOffloads},
		{[]any{"tun_vnet", true, "tunnel", false}, TUNVnet},
		{[]any{"tun_vnet", true, "queues", 1, "other", true, "udp_gro", nil}, TUNVnet},
	} {
		if got := offloadsIn(c.attrs); got != c.want {
			t.Errorf("%v: %s, want %s", c.attrs, got, c.want)
		}
	}
}

// TestOffloadsInUse: an open dataplane uses what it was asked to as far as this kernel can, and without any none.
func TestOffloadsInUse(t *testing.T) {
	for _, asked := range []Offloads{0, TUNVnet, AllOffloads &^ TUNMultiqueue} {
		h := newHost(t)
		h.offloads = asked
		d := h.open()
		h.sync(d)
		if got := d.Offloads(); got&^asked != 0 || asked.has(TUNVnet) != got.has(TUNVnet) {
			t.Errorf("asked for %s, uses %s", asked, got)
		}
	}
}
