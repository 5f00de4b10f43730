package guard

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/overlayd/overlayd/dataplane"
	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// TestBridgedPods: a pod has no address of another host's pod towards a pod on the same bridge, if the bridge asks the rules of IP (br_netfilter).
func TestBridgedPods(t *testing.T) {
	w := newWorld(t, false)
	w.join()
	a := w.hosts[0]
	pods := []*netnstest.NS{netnstest.New(t), netnstest.New(t)}
	a.Run("ip", "link", "add", "cni0", "up", "type", "bridge")
	a.Run("sysctl", "-wq", "net.bridge.bridge-nf-call-iptables=1") // as Kubernetes wants it
	for i, p := range pods {
		netnstest.Link(a.NS, fmt.Sprint("p", i), p, "eth0")
		a.Run("ip", "link", "set", fmt.Sprint("p", i), "master", "cni0")
		p.Addr("eth0", fmt.Sprintf("10.42.1.%d/24", 130+i))
	}
	a.Run("ip", "addr", "del", "10.42.1.1/24", "dev", "veth0") // of the world's pod: the bridge has the subnet
	a.Addr("cni0", "10.42.1.1/24")
	a.listen(pods[1], "bridged")
	to := netip.MustParseAddr("10.42.1.131")
	if err := w.exchange(pods[0], netip.MustParseAddr("10.42.1.130"), to, 100); err != nil {
		t.Fatal(err)
	}
	w.expect("a pod as another host's", a, dataplane.DropBadSource, func(text []byte) {
		sendRaw(pods[0], packet(w.hosts[1].podAddr(false), to, 1, receivePort, text))
	})
}
