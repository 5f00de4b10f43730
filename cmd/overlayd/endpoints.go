package main

import (
	"fmt"
	"net"
	"net/http"
	"strconv"

	"github.com/overlayd/overlayd/cmd/internal/flags"
	"github.com/overlayd/overlayd/cmd/internal/metrics"
	"github.com/overlayd/overlayd/cmd/internal/node"
	"github.com/overlayd/overlayd/cmd/internal/status"
	"github.com/overlayd/overlayd/cmd/internal/statuspage"
	"github.com/overlayd/overlayd/cmd/internal/tcpport"
)

// endpoints are the TCP ports at which a daemon answers.
func endpoints(o *flags.Process, p status.Process) (all []node.Endpoint) {
	if o.HealthzPort != 0 {
		all = append(all, endpoint("healthz", o.HealthzIP, o.HealthzPort, healthHandler))
	}
	if o.MetricsPort != 0 {
		all = append(all, endpoint("metrics", o.MetricsIP, o.MetricsPort, func(d *node.Daemon) http.Handler {
			return metricsHandler(func() status.Daemon { return reportOf(d, p) }, metrics.Peers(o.MetricsPeers))
		}))
	}
	return all
}

// endpoint is the port of two flags that begin with name. An error of its listener names them.
func endpoint(name, ip string, port int, handler func(*node.Daemon) http.Handler) node.Endpoint {
	return node.Endpoint{Name: name, At: net.JoinHostPort(ip, strconv.Itoa(port)), Handler: handler, Listen: func() (net.Listener, error) {
		l, err := tcpport.Listen(ip, port)
		if err != nil {
			return nil, fmt.Errorf("--%s-ip %s --%s-port %d: %w", name, ip, name, port, err)
		}
		return l, nil
	}}
}

func healthHandler(d *node.Daemon) http.Handler { return status.Handler(d.Ready, d.Checks) }

// metricsHandler answers at the port for Prometheus and for browsers.
func metricsHandler(report func() status.Daemon, peers metrics.Peers) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/metrics", metrics.Handler(report, peers))
	mux.Handle("/", statuspage.Handler(func() status.Daemon { return report().Bounded() }))
	return status.ReadOnly(mux)
}
