package status

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/controller"
	"github.com/overlayd/overlayd/dataplane"
)

// full is a network of which every field is set.
func full() Network {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	fault := controller.Fault{Reason: "lost", Err: "somebody else has it", Fix: "drain it", Since: at}
	subnet := netip.MustParsePrefix("10.5.1.0/24")
	v4, v6 := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	return Network{
		V: Version, Name: "red", SessionStart: at, Sessions: 2, Err: "down", Fix: "start it", ErrSince: at, Ready: true, ReadySince: at,
		ConfigHeld: &HeldConfig{Networks: []netip.Prefix{subnet}, Why: "does not fit", Since: at, Until: at},
		Mode:       "kernel", VNI: 1, Port: 8472, MTU: 1450,
		Offloads: []string{"tun-vnet"}, SourceCheck: "strict", EgressMark: 0x100000,
		Underlay:       &Underlay{Interface: "eth0", MTU: 1500, Ends: []End{{Local: v4, Public: v4}, {Local: v6, Public: v6}}},
		UnderlayFaults: []dataplane.Warning{{ID: "underlay", Text: "down", Fix: "up", Since: at}},
		Beside:         []dataplane.Warning{{ID: "flanneld", Text: "runs", Fix: "end it", Since: at}},
		Lease:          &Lease{Key: "10.5.1.0-24", Subnets: []netip.Prefix{subnet}, VTEPs: []VTEP{{Public: v4, MAC: "02:00:00:00:00:01"}}, Expires: at},
		LeaseFault:     fault, SyncFault: fault, FileFaults: []controller.Fault{fault},
		Peers: []controller.PeerStatus{{Subnet: subnet, VTEP: v6, Name: "two", State: controller.PeerFailed, Reason: "refused", Err: "no route", Since: at}},
		Probes: &Probes{IntervalMS: 1, RoundMS: 2, Err: "no socket", Fix: "as root",
			Counts: ProbeCounts{Sent: 3, Answered: 4, Lost: 5, Unsent: 6, Forged: 7, Changes: 8, RTTs: [RTTBuckets]uint64{13}, RTTMicros: 14},
			Peers: []Probe{{Subnet: subnet, VTEP: v6, State: ProbeDegraded, Reason: ReasonPathMTU, Err: "too big", Fix: "ip link", Since: at, Last: at,
				RTTMicros: 9, SmoothMicros: 10, Tries: 12, Lost: 11, MTU: MTUTooSmall, PathMTU: 1400, Forwards: ForwardsYes}}},
		Traffic:  []PeerTraffic{{VTEP: v6, Traffic: dataplane.Traffic{TxBytes: 2, RxBytes: 4}}},
		Rejected: []controller.EntryStatus{{Key: "10.5.2.0-24", Subnet: subnet, Node: netip.MustParseAddr("192.0.2.7"), Name: "seven", Fault: fault}},
		Bad:      []controller.EntryStatus{{Key: "x", Node: netip.MustParseAddr("192.0.2.8"), Name: "eight", Fault: fault}},
		Control: controller.Stats{Leases: 1, Bad: 2, Rejected: 3, Peers: 4, BadUpdates: 5, Syncs: 6, SyncFailures: 7,
			Renewals: 8, RenewFails: 9, Losses: 10, FileRepairs: 11, MACChanges: 12, Withdrawn: 13},
		ConfigRepairs: 14,
		Repairs:       []Repairs{{Part: "rules", Kind: "route", Count: 4, Last: at}},
		Parts: []dataplane.PartStatus{{Name: "rules", State: dataplane.StateDegraded, Err: "down", Fix: "modprobe", Since: at,
			Objects:  []dataplane.ObjectStatus{{Kind: "route", Wanted: 3, Have: 2, Repairs: 1, LastRepair: at, Lately: 1}},
			Warnings: []dataplane.Warning{{ID: "rp_filter", Text: "strict", Fix: "sysctl", Since: at}}}},
		Store: &control.StoreStatus{Kind: "etcd", Endpoint: "http://192.0.2.1:2379", Connected: true, Err: "down", Refusal: true, Untrusted: true, Since: at, Revision: 7, LastAnswer: at,
			Clones: []control.Clone{{Host: "vm", PublicIP: v4, Boot: "b", Since: at, Gone: at}},
			Unused: []control.UnusedEndpoint{{Endpoint: "http://192.0.2.2:2379", Err: "other", Fix: "remove it", Since: at}}},
		Etcd:         &Server{Running: true, PID: 7, Since: at, Starts: 2, Refused: 3, Err: "down", Fix: "make room", Closed: "nc has the port"},
		Certificates: []Certificate{{File: "/etc/join.pem", Begins: at, Expires: at, Err: "gone", Fix: "make it"}},
		Counters:     map[string]uint64{"tx_packets": 1}, SharedPort: map[string]uint64{"rx_packets": 2},
	}
}

// golden are the bytes that scripts read: names that are here stay, with their meaning, as long as
// Version is 1. A field that is added belongs here too.
const golden = `{
 "v": 1,
 "name": "red",
 "session_start": "2026-01-02T03:04:05Z",
 "sessions": 2,
 "err": "down",
 "fix": "start it",
 "err_since": "2026-01-02T03:04:05Z",
 "ready": true,
 "ready_since": "2026-01-02T03:04:05Z",
 "config_held": {
  "networks": [
   "10.5.1.0/24"
  ],
  "why": "does not fit",
  "since": "2026-01-02T03:04:05Z",
  "until": "2026-01-02T03:04:05Z"
 },
 "mode": "kernel",
 "vni": 1,
 "port": 8472,
 "mtu": 1450,
 "underlay": {
  "interface": "eth0",
  "mtu": 1500,
  "ends": [
   {
    "local": "192.0.2.1",
    "public": "192.0.2.1"
   },
   {
    "local": "2001:db8::1",
    "public": "2001:db8::1"
   }
  ]
 },
 "underlay_faults": [
  {
   "id": "underlay",
   "text": "down",
   "fix": "up",
   "since": "2026-01-02T03:04:05Z"
  }
 ],
 "beside": [
  {
   "id": "flanneld",
   "text": "runs",
   "fix": "end it",
   "since": "2026-01-02T03:04:05Z"
  }
 ],
 "offloads": [
  "tun-vnet"
 ],
 "source_check": "strict",
 "egress_mark": 1048576,
 "lease": {
  "key": "10.5.1.0-24",
  "subnets": [
   "10.5.1.0/24"
  ],
  "vteps": [
   {
    "public_ip": "192.0.2.1",
    "mac": "02:00:00:00:00:01"
   }
  ],
  "expires": "2026-01-02T03:04:05Z"
 },
 "lease_fault": {
  "reason": "lost",
  "err": "somebody else has it",
  "fix": "drain it",
  "since": "2026-01-02T03:04:05Z"
 },
 "sync_fault": {
  "reason": "lost",
  "err": "somebody else has it",
  "fix": "drain it",
  "since": "2026-01-02T03:04:05Z"
 },
 "file_faults": [
  {
   "reason": "lost",
   "err": "somebody else has it",
   "fix": "drain it",
   "since": "2026-01-02T03:04:05Z"
  }
 ],
 "peers": [
  {
   "subnet": "10.5.1.0/24",
   "vtep": "2001:db8::1",
   "name": "two",
   "state": "failed",
   "reason": "refused",
   "err": "no route",
   "since": "2026-01-02T03:04:05Z"
  }
 ],
 "probes": {
  "interval_ms": 1,
  "round_ms": 2,
  "err": "no socket",
  "fix": "as root",
  "counts": {
   "sent": 3,
   "answered": 4,
   "lost": 5,
   "unsent": 6,
   "forged": 7,
   "changes": 8,
   "rtts": [
    13,
    0,
    0,
    0,
    0,
    0,
    0,
    0,
    0,
    0,
    0,
    0,
    0,
    0
   ],
   "rtt_sum_us": 14
  },
  "peers": [
   {
    "subnet": "10.5.1.0/24",
    "vtep": "2001:db8::1",
    "state": "degraded",
    "reason": "path_mtu",
    "err": "too big",
    "fix": "ip link",
    "since": "2026-01-02T03:04:05Z",
    "last": "2026-01-02T03:04:05Z",
    "rtt_us": 9,
    "rtt_smooth_us": 10,
    "tries": 12,
    "lost": 11,
    "mtu": "too_small",
    "path_mtu": 1400,
    "forwards": "yes"
   }
  ]
 },
 "traffic": [
  {
   "vtep": "2001:db8::1",
   "tx_bytes": 2,
   "rx_bytes": 4
  }
 ],
 "rejected": [
  {
   "key": "10.5.2.0-24",
   "subnet": "10.5.1.0/24",
   "node": "192.0.2.7",
   "name": "seven",
   "reason": "lost",
   "err": "somebody else has it",
   "fix": "drain it",
   "since": "2026-01-02T03:04:05Z"
  }
 ],
 "bad": [
  {
   "key": "x",
   "node": "192.0.2.8",
   "name": "eight",
   "reason": "lost",
   "err": "somebody else has it",
   "fix": "drain it",
   "since": "2026-01-02T03:04:05Z"
  }
 ],
 "control": {
  "leases": 1,
  "bad": 2,
  "rejected": 3,
  "peers": 4,
  "bad_updates": 5,
  "syncs": 6,
  "sync_failures": 7,
  "renewals": 8,
  "renew_failures": 9,
  "losses": 10,
  "file_repairs": 11,
  "mac_changes": 12,
  "withdrawn": 13
 },
 "repairs": [
  {
   "part": "rules",
   "kind": "route",
   "count": 4,
   "last": "2026-01-02T03:04:05Z"
  }
 ],
 "config_repairs": 14,
 "parts": [
  {
   "name": "rules",
   "state": "degraded",
   "err": "down",
   "fix": "modprobe",
   "since": "2026-01-02T03:04:05Z",
   "objects": [
    {
     "kind": "route",
     "wanted": 3,
     "have": 2,
     "repairs": 1,
     "last_repair": "2026-01-02T03:04:05Z",
     "repairs_lately": 1
    }
   ],
   "warnings": [
    {
     "id": "rp_filter",
     "text": "strict",
     "fix": "sysctl",
     "since": "2026-01-02T03:04:05Z"
    }
   ]
  }
 ],
 "store": {
  "kind": "etcd",
  "endpoint": "http://192.0.2.1:2379",
  "connected": true,
  "err": "down",
  "refusal": true,
  "untrusted": true,
  "since": "2026-01-02T03:04:05Z",
  "revision": 7,
  "last_answer": "2026-01-02T03:04:05Z",
  "clones": [
   {
    "host": "vm",
    "public_ip": "192.0.2.1",
    "boot": "b",
    "since": "2026-01-02T03:04:05Z",
    "gone": "2026-01-02T03:04:05Z"
   }
  ],
  "unused": [
   {
    "endpoint": "http://192.0.2.2:2379",
    "err": "other",
    "fix": "remove it",
    "since": "2026-01-02T03:04:05Z"
   }
  ]
 },
 "etcd": {
  "running": true,
  "pid": 7,
  "since": "2026-01-02T03:04:05Z",
  "starts": 2,
  "refused": 3,
  "err": "down",
  "fix": "make room",
  "closed": "nc has the port"
 },
 "certificates": [
  {
   "file": "/etc/join.pem",
   "begins": "2026-01-02T03:04:05Z",
   "expires": "2026-01-02T03:04:05Z",
   "err": "gone",
   "fix": "make it"
  }
 ],
 "counters": {
  "tx_packets": 1
 },
 "shared_port": {
  "rx_packets": 2
 }
}`

// TestGolden: the JSON of a status, byte by byte, and the way back.
func TestGolden(t *testing.T) {
	text, err := json.MarshalIndent(full(), "", " ")
	if err != nil {
		t.Fatal(err)
	}
	got, want := strings.Split(string(text), "\n"), strings.Split(golden, "\n")
	for i := range max(len(got), len(want)) {
		if i >= len(got) || i >= len(want) || got[i] != want[i] {
			t.Fatalf("line %d and after it:\n%s\nwant\n%s", i+1, strings.Join(got[min(i, len(got)):], "\n"), strings.Join(want[min(i, len(want)):], "\n"))
		}
	}
	var back Network
	if err := json.Unmarshal([]byte(golden), &back); err != nil || !reflect.DeepEqual(back, full()) {
		t.Errorf("read back: %+v, %v", back, err)
	}
}

// TestGoldenIsFull: no field of the values is left out of the golden text.
func TestGoldenIsFull(t *testing.T) {
	var check func(path string, v reflect.Value)
	check = func(path string, v reflect.Value) {
		if v.IsZero() {
			t.Errorf("%s is not set", path)
			return
		}
		switch v.Kind() {
		case reflect.Pointer:
			check(path, v.Elem())
		case reflect.Slice:
			check(path+"[0]", v.Index(0))
		case reflect.Struct:
			if !strings.Contains(v.Type().PkgPath(), "overlayd") {
				return
			}
			for i := range v.NumField() {
				if f := v.Type().Field(i); f.Tag.Get("json") != "-" && path+"."+f.Name != "Network.Bad[0].Subnet" { // a bad entry has none
					check(path+"."+f.Name, v.Field(i))
				}
			}
		}
	}
	check("Network", reflect.ValueOf(full()))
}

// TestAddedFieldsBreakNothing: a reader of today reads the status of a later daemon.
func TestAddedFieldsBreakNothing(t *testing.T) {
	later := strings.Replace(golden, `"name": "red",`, `"name": "red", "later": {"x": [1]},`, 1)
	var n Network
	if err := json.Unmarshal([]byte(later), &n); err != nil || n.Name != "red" || n.Store.Revision != 7 {
		t.Errorf("got %+v, %v", n, err)
	}
}

// TestCounterOrder: the names and their order, which are the same in the log, in the status and in
// metrics; the drops have the names of their reasons, in the order of the enum.
func TestCounterOrder(t *testing.T) {
	var s dataplane.Stats
	want := []string{"tx_packets", "tx_bytes", "rx_packets", "rx_bytes"}
	for reason := range s.Drops {
		want = append(want, "drops_"+dataplane.Drop(reason).String())
		s.Drops[reason] = uint64(100 + reason)
	}
	want = append(want, "tx_write_errors", "tx_superpackets", "tx_segments", "tx_batches", "rx_superpackets", "rx_segments", "rx_batches", "fallbacks", "narrow_paths")
	all := Counters(s)
	if len(all) != len(want) {
		t.Fatalf("%d counters, want %d", len(all), len(want))
	}
	for i, c := range all {
		if c.Name != want[i] {
			t.Errorf("counter %d is %s, want %s", i, c.Name, want[i])
		}
		if reason := i - 4; strings.HasPrefix(c.Name, "drops_") && c.Value != uint64(100+reason) {
			t.Errorf("%s is %d, want %d", c.Name, c.Value, 100+reason)
		}
	}
	if zero := Counters(dataplane.Stats{}); len(zero) != len(want) {
		t.Errorf("of empty statistics %d counters, want all %d", len(zero), len(want))
	}
}

// TestMethodsAndPaths: only GET and HEAD get an answer, on three paths, and only /readyz depends on
// whether the daemon is ready. Nobody else is asked.
func TestMethodsAndPaths(t *testing.T) {
	for _, method := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE", "BREW"} {
		for _, path := range []string{"/livez", "/healthz", "/readyz", "/", "/readyz/", "/metrics", "/debug/pprof/", "/livez?v", "/READYZ"} {
			for _, ready := range []bool{false, true} {
				asked := 0
				r := httptest.NewRecorder()
				Handler(func() bool { asked++; return ready }, noChecks).ServeHTTP(r, httptest.NewRequest(method, path, nil))
				want, asks := 404, 0
				switch plain, _, _ := strings.Cut(path, "?"); {
				case method != "GET" && method != "HEAD":
					want = 405
				case plain == "/livez" || plain == "/healthz":
					want = 200
				case plain == "/readyz":
					want, asks = map[bool]int{true: 200, false: 503}[ready], 1
				}
				if r.Code != want || asked != asks {
					t.Errorf("%s %s, ready %v: %d after %d questions, want %d after %d", method, path, ready, r.Code, asked, want, asks)
				}
				if body := r.Body.String(); !strings.HasSuffix(body, "\n") || strings.Count(body, "\n") != 1 || len(r.Header().Get("Location")) > 0 {
					t.Errorf("%s %s: %q, want one line", method, path, body)
				}
			}
		}
	}
}

// TestReadinessIsLive: each request asks again.
func TestReadinessIsLive(t *testing.T) {
	ready := false
	h := Handler(func() bool { return ready }, noChecks)
	for i, want := range []int{503, 200, 503, 200} {
		ready = i%2 == 1
		r := httptest.NewRecorder()
		if h.ServeHTTP(r, httptest.NewRequest("GET", "/readyz", nil)); r.Code != want {
			t.Errorf("request %d: %d, want %d", i, r.Code, want)
		}
	}
}

// TestServeDies: a listener that fails is reported once, with its error, and a stop after that
// returns; a stop without a death reports nothing, and ends the listener.
func TestServeDies(t *testing.T) {
	died := make(chan error, 2)
	reason := errors.New("the card was pulled")
	stop := Serve(broken{reason}, http.NotFoundHandler(), func(err error) { died <- err })
	if err := <-died; !errors.Is(err, reason) {
		t.Errorf("died of %v", err)
	}
	stop()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	stop = Serve(l, http.NotFoundHandler(), func(err error) { died <- err })
	stop()
	if _, err := net.Dial("tcp", l.Addr().String()); err == nil {
		t.Error("the listener outlives the stop")
	}
	if len(died) > 0 {
		t.Errorf("reported %v", <-died)
	}
}

// broken is a listener that fails at once.
type broken struct{ err error }

func (b broken) Accept() (net.Conn, error) { return nil, b.err }
func (b broken) Close() error              { return nil }
func (b broken) Addr() net.Addr            { return &net.TCPAddr{} }

// TestRequestsAreSmall: a request with much more of a header than one needs gets no answer from a
// handler.
func TestRequestsAreSmall(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	reached := make(chan string, 4)
	h := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { reached <- r.URL.Path })
	defer Serve(l, h, func(error) {})()
	for path, size := range map[string]int{"/small": 1 << 10, "/large": 1 << 16} {
		req, err := http.NewRequest("GET", fmt.Sprintf("http://%s%s", l.Addr(), path), nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X", strings.Repeat("x", size))
		client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		resp, err := client.Do(req)
		if err == nil {
			resp.Body.Close()
		}
		if path == "/large" && err == nil && resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
			t.Errorf("%s: %d", path, resp.StatusCode)
		}
	}
	if len(reached) != 1 || <-reached != "/small" {
		t.Error("only the small request should be answered")
	}
}
