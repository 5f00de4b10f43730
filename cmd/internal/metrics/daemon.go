package metrics

import (
	"runtime"
	"time"

	"github.com/overlayd/overlayd/cmd/internal/status"
)

// daemonFamilies are about the process and what its networks share.
func daemonFamilies() []family {
	return []family{
		{"build_info", "The version of overlayd; the value is 1.", gauge, []string{"version", "goversion"}, func(d *view, add emit) {
			add(1, d.Process.Version, runtime.Version())
		}},
		{"state", "1 for the state that the daemon is in, 0 for the others.", gauge, []string{"state"}, func(d *view, add emit) {
			for _, s := range []status.State{status.Healthy, status.Degraded, status.NotReady} {
				add(number(d.Verdict.State == s), string(s))
			}
		}},
		{"log_lines_lost_total", "Lines of the log that could not be written.", counter, nil, func(d *view, add emit) { add(float64(d.Process.LogLinesLost)) }},
		{"warnings", "What is not as it should be, by the id that overlayd status -o json has.", gauge, []string{network, "id"}, warnings},
		{"etcd_running", "1 if the embedded etcd runs.", gauge, nil, ofEtcd(func(e *status.Server) float64 { return number(e.Running) })},
		{"etcd_listening", "1 if the embedded etcd runs and has its TCP port, 0 while somebody else has that.", gauge, nil, ofEtcd(func(e *status.Server) float64 { return number(e.Running && e.Closed == "") })},
		{"etcd_starts_total", "How often the embedded etcd was started.", counter, nil, ofEtcd(func(e *status.Server) float64 { return float64(e.Starts) })},
		{"etcd_refused_connections_total", "Connections that the embedded etcd refused, such as those without the right certificate.", counter, nil, ofEtcd(func(e *status.Server) float64 { return float64(e.Refused) })},
		{"certificate_expiry_timestamp_seconds", "When a certificate of the way to etcd ends, in seconds since 1970.", gauge, []string{"file"}, func(d *view, add emit) {
			if len(d.Networks) > 0 {
				for _, c := range d.Networks[0].Certificates {
					if !c.Expires.IsZero() {
						add(float64(c.Expires.Unix()), c.File)
					}
				}
			}
		}},
		{"endpoint_listening", "1 if the daemon listens at the TCP port of these flags, 0 while somebody else has that.", gauge, []string{"endpoint", "address"}, func(d *view, add emit) {
			for _, e := range d.Endpoints {
				add(number(e.Listening), e.Name, e.Address)
			}
		}},
		{"endpoint_tries_total", "How often the daemon has tried to listen at a TCP port.", counter, []string{"endpoint", "address"}, func(d *view, add emit) {
			for _, e := range d.Endpoints {
				add(float64(e.Tries), e.Name, e.Address)
			}
		}},
		{"admin_requests_total", "Requests at the admin socket.", counter, nil, ofAdmin(func(a *status.Admin) uint64 { return a.Requests })},
		{"admin_refused_total", "Requests at the admin socket of users without the right.", counter, nil, ofAdmin(func(a *status.Admin) uint64 { return a.Refused })},
		{"admin_dropped_connections_total", "Connections to the admin socket that had to make room.", counter, nil, ofAdmin(func(a *status.Admin) uint64 { return a.Dropped })},
		{"admin_panics_total", "Faults of overlayd in requests at the admin socket.", counter, nil, ofAdmin(func(a *status.Admin) uint64 { return a.Panics })},
		{"admin_socket_repairs_total", "How often the admin socket was made again because somebody had removed it.", counter, nil, ofAdmin(func(a *status.Admin) uint64 { return a.Restored })},
		{"shared_port_packets_total", "Inner packets that arrived at a UDP port of several networks.", counter, []string{"port"}, func(d *view, add emit) {
			ofSharedPorts(d, func(port string, c map[string]uint64) { add(float64(c["rx_packets"]), port) })
		}},
		{"shared_port_narrow_paths_total", "ICMP messages that were not believed because they told of a path MTU below --min-path-mtu, at a UDP port of several networks.", counter, []string{"port"}, func(d *view, add emit) {
			ofSharedPorts(d, func(port string, c map[string]uint64) { add(float64(c["narrow_paths"]), port) })
		}},
		{"shared_port_dropped_packets_total", "Packets dropped at a UDP port of several networks, before it was known for which.", counter, []string{"port", "reason"}, func(d *view, add emit) {
			ofSharedPorts(d, func(port string, c map[string]uint64) {
				drops(c, func(v float64, reason ...string) { add(v, port, reason[0]) })
			})
		}},
	}
}

// warnings counts them by network and id.
func warnings(d *view, add emit) {
	type key struct{ network, id string }
	counts := map[key]int{}
	for _, w := range d.Warnings {
		counts[key{w.Network, w.ID}]++
	}
	for k, n := range counts {
		add(float64(n), k.network, k.id)
	}
}

func ofEtcd(value func(*status.Server) float64) func(*view, emit) {
	return func(d *view, add emit) {
		if len(d.Networks) > 0 && d.Networks[0].Etcd != nil { // it serves all networks
			add(value(d.Networks[0].Etcd))
		}
	}
}

func ofAdmin(value func(*status.Admin) uint64) func(*view, emit) {
	return func(d *view, add emit) {
		if d.Admin != nil {
			add(float64(value(d.Admin)))
		}
	}
}

// ofSharedPorts calls each for every port that networks share. Each of these networks has its counters.
func ofSharedPorts(d *view, each func(port string, counters map[string]uint64)) {
	seen := map[string]bool{}
	for i := range d.Networks {
		n := &d.Networks[i]
		if port := decimal(n.Port); len(n.SharedPort) > 0 && !seen[port] {
			seen[port] = true
			each(port, n.SharedPort)
		}
	}
}

func number(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

// seconds is a time as Prometheus has it.
func seconds(t time.Time) float64 { return float64(t.UnixMilli()) / 1e3 }
