// Package metrics shows the status of a daemon to Prometheus, in the names that Prometheus asks for
// (https://prometheus.io/docs/practices/naming). When somebody asks, each series is made from one value of the status. Nothing is
// counted here, so a daemon that nobody asks does no work for metrics.
package metrics

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/overlayd/overlayd/cmd/internal/status"
)

// Handler answers GET /metrics with what report says, and with the metrics of the Go runtime and of the process.
func Handler(report func() status.Daemon, peers Peers) http.Handler {
	r := prometheus.NewRegistry()
	r.MustRegister(newCollector(report, peers), collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return promhttp.HandlerFor(r, promhttp.HandlerOpts{MaxRequestsInFlight: 4})
}

// emit adds one series of a family.
type emit func(value float64, labels ...string)

// family is one metric: a row of a table.
type family struct {
	name   string // without the prefix
	help   string
	kind   prometheus.ValueType
	labels []string
	read   func(d *view, add emit)
}

// view is what a scrape reads.
type view struct {
	status.Daemon
	shown [][]status.Peer // of each network: the peers with series of their own
}

const (
	counter = prometheus.CounterValue
	gauge   = prometheus.GaugeValue
)

// collector makes metrics of a status.
type collector struct {
	report   func() status.Daemon
	peers    Peers
	families []family
	descs    []*prometheus.Desc // of families
	rtt      *prometheus.Desc
}

func newCollector(report func() status.Daemon, peers Peers) *collector {
	c := &collector{report: report, peers: peers, rtt: prometheus.NewDesc(prefix+"probe_rtt_seconds", "Round trips of probes through the overlay.", []string{network}, nil)}
	for _, table := range [][]family{daemonFamilies(), networkFamilies(), dataplaneFamilies(), peerFamilies(peers)} {
		c.families = append(c.families, table...)
	}
	for _, f := range c.families {
		c.descs = append(c.descs, prometheus.NewDesc(prefix+f.name, f.help, f.labels, nil))
	}
	return c
}

const (
	prefix  = "overlayd_"
	network = "network" // label: the name of a network, empty if the daemon serves one
)

// Describe implements prometheus.Collector.
func (c *collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		out <- d
	}
	out <- c.rtt
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	d := view{Daemon: c.report()}
	for i := range d.Networks {
		d.shown = append(d.shown, shown(&d.Networks[i], c.peers))
	}
	for i, f := range c.families {
		f.read(&d, func(value float64, labels ...string) {
			out <- prometheus.MustNewConstMetric(c.descs[i], f.kind, value, labels...)
		})
	}
	c.histograms(&d, out)
}

// histograms are the round trips of each network's probes.
func (c *collector) histograms(d *view, out chan<- prometheus.Metric) {
	bounds := status.RTTBounds()
	for i := range d.Networks {
		n := &d.Networks[i]
		if n.Probes == nil {
			continue
		}
		counts := n.Probes.Counts
		buckets, sum := map[float64]uint64{}, uint64(0)
		for b, count := range counts.RTTs {
			if sum += count; b < len(bounds) {
				buckets[bounds[b].Seconds()] = sum
			}
		}
		out <- prometheus.MustNewConstHistogram(c.rtt, sum, float64(counts.RTTMicros)/1e6, buckets, n.Name)
	}
}
