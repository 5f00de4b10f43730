package main

// metric is one figure of a row.
type metric struct {
	key, title string
	digits     int // after the point, in the table
	meaning    string
}

// group is the metrics of one table.
type group struct {
	title   string
	metrics []metric
}

// groups are all metrics, as the tables show them.
func groups() []group {
	return []group{
		{"Throughput", []metric{
			{"tcp1_gbit_s", "TCP, 1 stream, Gbit/s", 2, "payload as the receiver gets it"},
			{"tcp8_gbit_s", "TCP, 8 streams, Gbit/s", 2, "the same, summed"},
			{"udp64_kpps", "UDP, 64 bytes, kpps", 1, "packets of 64 bytes (IP header included) received by the application, in thousands per second, while one sender sends as fast as it can"},
			{"udp1400_kpps", "UDP, 1400 bytes, kpps", 1, "the same with packets of 1400 bytes"},
		}},
		{"Round trip (ICMP echo, 56 bytes)", []metric{
			{"flood_rtt_us", "flood, mean, µs", 1, "each echo right after the answer to the one before"},
			{"idle_rtt_p50_us", "idle, p50, µs", 1, "an echo every 5 ms and nothing else"},
			{"idle_rtt_p99_us", "idle, p99, µs", 1, "the same"},
			{"load_rtt_p99_ms", "under TCP, p99, ms", 3, "an echo every 2 ms beside one TCP stream in the same direction"},
		}},
		{"CPU seconds per Gbit, during TCP with 1 stream", []metric{
			{"cpu_processes_s_gbit", "processes", 3, "user and system time of all processes of both hosts: traffic and daemons"},
			{"cpu_machine_s_gbit", "machine", 3, "everything but idle and stolen time: softirqs as well, and whatever else the machine does"},
		}},
	}
}

// meanings are the metrics by key, for the report.
func meanings() map[string]string {
	out := make(map[string]string)
	for _, g := range groups() {
		for _, m := range g.metrics {
			out[m.key] = m.title + ": " + m.meaning
		}
	}
	return out
}
