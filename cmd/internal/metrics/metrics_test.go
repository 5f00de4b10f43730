package metrics

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/overlayd/overlayd/cmd/internal/status"
	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/controller"
	"github.com/overlayd/overlayd/dataplane"
)

// sample is a daemon with something of everything.
func sample(peers int) status.Daemon {
	counters := map[string]uint64{}
	stats := dataplane.Stats{TxPackets: 7, TxBytes: 700}
	stats.Drops[dataplane.DropNoRoute] = 3
	for _, c := range status.Counters(stats) {
		counters[c.Name] = c.Value
	}
	var networks []status.Network
	for _, name := range []string{"blue", "red"} {
		n := status.Network{
			Name: name, Ready: true, Mode: "userspace", Port: 8472, MTU: 1450, Counters: counters, SharedPort: counters,
			Lease: &status.Lease{Expires: time.Unix(1e9, 0)}, Control: controller.Stats{Syncs: 5, SyncFailures: 2},
			Store: &control.StoreStatus{Connected: true, LastAnswer: time.Unix(1e9, 0)}, Etcd: &status.Server{Running: true, Starts: 2, Refused: 3},
			Certificates: []status.Certificate{{File: "/etc/join.pem", Expires: time.Unix(4e9, 0)}},
			Parts:        []dataplane.PartStatus{{Name: "masq", State: dataplane.StateOK}},
			Repairs:      []status.Repairs{{Part: "kernel", Kind: "route", Count: 4}}, Probes: &status.Probes{},
		}
		n.Probes.Counts.RTTs[0], n.Probes.Counts.RTTs[status.RTTBuckets-1], n.Probes.Counts.RTTMicros = 2, 1, 3e6
		for i := range peers {
			subnet, vtep := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24), netip.MustParseAddr("192.0.2.1")
			n.Peers = append(n.Peers, controller.PeerStatus{Subnet: subnet, VTEP: vtep, Name: fmt.Sprint("n", i), State: controller.PeerUp})
			n.Probes.Peers = append(n.Probes.Peers, status.Probe{Subnet: subnet, VTEP: vtep, State: status.ProbeOK, SmoothMicros: int64(i), Tries: 4, Lost: 1})
		}
		if peers > 0 {
			n.Traffic = []status.PeerTraffic{{VTEP: netip.MustParseAddr("192.0.2.1"), Traffic: dataplane.Traffic{TxBytes: 2, RxBytes: 4}}}
		}
		networks = append(networks, n)
	}
	return status.Report(status.Process{Host: "h", Version: "v1"}, true, networks, status.Endpoint{Name: "healthz", Address: "127.0.0.1:8081", Listening: true, Tries: 2})
}

func scrape(t testing.TB, d status.Daemon, peers Peers) string {
	t.Helper()
	d.Admin = &status.Admin{Requests: 1}
	w := httptest.NewRecorder()
	Handler(func() status.Daemon { return d }, peers).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if w.Code != http.StatusOK {
		t.Fatalf("%d: %s", w.Code, w.Body)
	}
	return w.Body.String()
}

// TestNames: names, types and help are as Prometheus wants them, and so is the text.
func TestNames(t *testing.T) {
	problems, err := promlint.New(strings.NewReader(scrape(t, sample(3), PeersOn))).Lint()
	if err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
}

func TestSeries(t *testing.T) {
	d := sample(3)
	d.Networks[1].Peers[2].Subnet = d.Networks[1].Peers[1].Subnet // it changes hands
	d.Networks[0].ConfigHeld = &status.HeldConfig{Why: "read JSON"}
	text := scrape(t, d, PeersOn)
	for _, want := range []string{
		`overlayd_state{state="healthy"} 1`,
		`overlayd_config_held{network="blue"} 1`,
		`overlayd_config_held{network="red"} 0`,
		`overlayd_etcd_refused_connections_total 3`,
		`overlayd_certificate_expiry_timestamp_seconds{file="/etc/join.pem"} 4e+09`,
		`overlayd_dataplane_packets_total{direction="tx",network="blue"} 7`,
		`overlayd_dataplane_dropped_packets_total{network="red",reason="no_route"} 3`,
		`overlayd_shared_port_dropped_packets_total{port="8472",reason="no_route"} 3`,
		`overlayd_syncs_total{network="red",result="ok"} 3`,
		`overlayd_lease_expiry_timestamp_seconds{network="blue"} 1e+09`,
		`overlayd_repairs_total{kind="route",network="blue",part="kernel"} 4`,
		`overlayd_peers{network="blue",state="up"} 3`,
		`overlayd_probed_peers{network="blue",state="ok"} 3`,
		`overlayd_peer_rtt_seconds{network="blue",peer="n2",subnet="10.0.2.0/24"} 2e-06`,
		`overlayd_peer_loss_ratio{network="blue",peer="n2",subnet="10.0.2.0/24"} 0.25`,
		`overlayd_peer_tx_bytes_total{network="blue",peer="n0",vtep="192.0.2.1"} 2`,
		`overlayd_peer_rx_bytes_total{network="blue",peer="n0",vtep="192.0.2.1"} 4`,
		`overlayd_probe_rtt_seconds_count{network="blue"} 3`,
		`overlayd_probe_rtt_seconds_sum{network="blue"} 3`,
		`overlayd_probe_rtt_seconds_bucket{network="blue",le="+Inf"} 3`,
		`overlayd_etcd_starts_total 2`,
		`overlayd_etcd_listening 1`,
		`overlayd_endpoint_listening{address="127.0.0.1:8081",endpoint="healthz"} 1`,
		`overlayd_endpoint_tries_total{address="127.0.0.1:8081",endpoint="healthz"} 2`,
		"go_goroutines ", "process_open_fds ",
	} {
		if !strings.Contains(text, "\n"+want) {
			t.Errorf("no %s", want)
		}
	}
	if n := strings.Count(text, "\noverlayd_peer_rx_bytes_total{"); n != 2 {
		t.Errorf("a VTEP of several subnets is there %d times in two networks", n)
	}
	if n := strings.Count(text, "\noverlayd_shared_port_packets_total"); n != 1 {
		t.Errorf("a port that two networks share is there %d times", n)
	}
}

// TestPeers: a value says which peers have series. Those that do not work come first.
func TestPeers(t *testing.T) {
	d := sample(2 * maxTop)
	d.Networks[0].Probes.Peers[0].State = status.ProbeDown
	for _, c := range []struct {
		peers Peers
		want  int
	}{{PeersOn, 4 * maxTop}, {PeersTop, 2 * maxTop}, {PeersOff, 0}} {
		text := scrape(t, d, c.peers)
		if n := strings.Count(text, "\noverlayd_peer_up{"); n != c.want {
			t.Errorf("%s: %d peers, want %d", c.peers, n, c.want)
		}
		if down := strings.Contains(text, `overlayd_peer_up{network="blue",peer="n0",subnet="10.0.0.0/24"} 0`); down != (c.want > 0) {
			t.Errorf("%s: the peer that is down is there: %v", c.peers, down)
		}
	}
}

// TestNothingIsKnown: a daemon that has just begun has metrics too.
func TestNothingIsKnown(t *testing.T) {
	text := scrape(t, status.Report(status.Process{}, false, nil), PeersTop)
	if !strings.Contains(text, `overlayd_state{state="not_ready"} 1`) {
		t.Error(text)
	}
}

func BenchmarkScrape10000(b *testing.B) {
	d := sample(5000) // of each of two networks
	h := Handler(func() status.Daemon { return d }, PeersTop)
	for b.Loop() {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		_, _ = io.Copy(io.Discard, w.Body)
	}
}
