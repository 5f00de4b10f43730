package main

import (
	"net/http"
	"slices"

	"github.com/overlayd/overlayd/cmd/internal/admin"
	"github.com/overlayd/overlayd/cmd/internal/doctor"
	"github.com/overlayd/overlayd/cmd/internal/logs"
	"github.com/overlayd/overlayd/cmd/internal/node"
	"github.com/overlayd/overlayd/cmd/internal/nodefile"
	"github.com/overlayd/overlayd/cmd/internal/status"
	"github.com/overlayd/overlayd/cmd/internal/stream"
	"github.com/overlayd/overlayd/cmd/internal/tap"
)

// adminRoutes lists what a daemon answers at its admin socket. One more endpoint is one more line.
func adminRoutes(d *node.Daemon, c *node.Config, p status.Process) []admin.Route {
	captures := tap.Server{Hub: c.Captures, Hello: stream.Hello{Host: p.Host, Version: p.Version}, Networks: d.Status, Log: c.Log}
	return slices.Concat([]admin.Route{
		{Pattern: "GET /v1/status", Handler: admin.JSON(func(*http.Request) any { return reportOf(d, p).Bounded() })},
		{Pattern: "GET /v1/peers", Handler: admin.JSON(func(r *http.Request) any { return status.FindPeers(d.Status(), r.FormValue("peer")) })},
		{Pattern: "GET /v1/checks", Handler: admin.JSON(func(r *http.Request) any { return checksOf(d, c, p, r.FormValue("peer")) })},
		{Pattern: "GET /readyz", Handler: healthHandler(d)}, // for the CNI plugin
		captures.Route(),
	}, admin.GuardRoutes(d, c.Log), admin.LogLevelRoutes(c.LogLevel, c.Log), admin.ProfileRoutes())
}

// reportOf returns how a daemon is.
func reportOf(d *node.Daemon, p status.Process) status.Daemon {
	p.LogLinesLost, p.LogBlocked = logs.Lost(), logs.Stderr.Blocked()
	r := status.Report(p, d.Ready(), d.Status(), d.Endpoints()...)
	stats := d.AdminStats()
	r.Admin = &stats
	return r
}

// checksOf returns what overlayd doctor would find.
func checksOf(d *node.Daemon, c *node.Config, p status.Process, peer string) doctor.Findings {
	report := reportOf(d, p)
	files := []string{c.SubnetFile}
	if c.SubnetDir != "" {
		files = nodefile.SubnetFilesIn(c.SubnetDir)
	}
	return doctor.Findings{V: status.Version, Checks: doctor.Run(doctor.Scene{Daemon: &report, Files: files, Peer: peer})}
}
