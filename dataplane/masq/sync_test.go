package masq

import "testing"

func TestSync(t *testing.T) {
	for _, v := range []variant{nftVariant, noIptables, iptNFT, iptLegacy} {
		t.Run(string(v), func(t *testing.T) {
			h := newHost(t, v)
			h.sync(h.config(), wanted())
			t.Log(h.ruleset())
			t.Log(h.executed())
			h.ipt("iptables", "-P", "FORWARD", "DROP")
			h.sync(h.config(), wanted())
			t.Log(h.ipt("iptables-save"))
			t.Log(h.executed())
		})
	}
}
