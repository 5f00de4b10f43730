package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// memoryNetwork is the overlay of rows of memory: it has room for 10 000 subnets.
const memoryNetwork = "10.0.0.0/8"

// memorySettle is left to a daemon between its last peer and the look: what the start has left behind is collected meanwhile.
const memorySettle = 5 * time.Second

// memoryTimeout is how long a daemon may take until all peers are routed.
const memoryTimeout = 90 * time.Second

// memoryRow is the memory of one daemon that has so many peers. None of them is there: their leases are.
type memoryRow struct {
	daemon string
	peers  int
	argv   []string // but for the flags that flanneld and overlayd share
	routes bool     // each peer is a route of the kernel
	anon   float64  // the most RssAnon in MB; 0: any
	rss    float64  // the most RSS in MB; 0: any
}

func memoryRows(overlayd string) (rows []memoryRow) {
	for _, peers := range []int{3, 1000, 10_000} {
		kernel, userspace, rss := 0.0, 0.0, 0.0
		switch peers {
		case 3:
			kernel, userspace = 8, 14
		case 10_000:
			rss = 60
		}
		rows = append(rows,
			memoryRow{"flanneld", peers, []string{"flanneld"}, true, 0, 0},
			memoryRow{"overlayd kernel", peers, []string{overlayd, "--dataplane", "kernel"}, true, kernel, rss},
			memoryRow{"overlayd userspace", peers, []string{overlayd, "--dataplane", "userspace"}, false, userspace, rss})
	}
	return rows
}

func (m memoryRow) name() string { return fmt.Sprintf("memory/%s, %d peers", m.daemon, m.peers) }

// memoryReport is what one of the rows took, in MB (10⁶ bytes).
type memoryReport struct {
	Name    string  `json:"name"`
	RSS     float64 `json:"rss_mb"`
	RssAnon float64 `json:"rss_anon_mb"` // without the pages of the program
	MaxRSS  float64 `json:"max_rss_mb,omitempty"`
	MaxAnon float64 `json:"max_rss_anon_mb,omitempty"`
	Missing string  `json:"missing,omitempty"` // why there are no figures
}

func (m memoryReport) verdict() string {
	switch {
	case m.Missing != "":
		return "missing: " + m.Missing
	case m.MaxAnon == 0 && m.MaxRSS == 0:
		return ""
	case m.MaxAnon > 0 && m.RssAnon > m.MaxAnon || m.MaxRSS > 0 && m.RSS > m.MaxRSS:
		return "FAIL"
	}
	return "PASS"
}

// wantsMemory reports whether --only matches a row of memory.
func (r *run) wantsMemory() bool { return len(r.selectMemory()) > 0 }

func (r *run) selectMemory() (wanted []memoryRow) {
	for _, m := range memoryRows(r.overlayd) {
		if r.only == nil || r.only.MatchString(m.name()) {
			wanted = append(wanted, m)
		}
	}
	return wanted
}

// memoryAll takes the rows one after the other, each once: memory hardly varies. Only the end of ctx is an error.
func (r *run) memoryAll(ctx context.Context) (reports []memoryReport, err error) {
	for i, m := range r.selectMemory() {
		rep := memoryReport{Name: m.name(), MaxRSS: m.rss, MaxAnon: m.anon, Missing: lacks(m.argv[0])}
		if rep.Missing != "" {
			r.say("%s: %s", rep.Name, rep.verdict())
			reports = append(reports, rep)
			continue
		}
		if rep.RSS, rep.RssAnon, err = r.memoryOf(ctx, fmt.Sprint("memory", i), m); ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if err != nil {
			rep.Missing = err.Error()
		}
		r.say("%s: RSS %.1f MB, RssAnon %.1f MB %s", rep.Name, rep.RSS, rep.RssAnon, rep.verdict())
		reports = append(reports, rep)
	}
	return reports, nil
}

// memoryOf starts a daemon beside an etcd with the leases of its peers.
func (r *run) memoryOf(ctx context.Context, dir string, m memoryRow) (rss, anon float64, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, memoryTimeout, fmt.Errorf("not all peers after %s", memoryTimeout))
	defer cancel()
	p, err := newPair(ctx, filepath.Join(r.dir, dir), underlays()[0])
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	url := fmt.Sprintf("http://%s:2379", p.a.underlay)
	if err := p.a.start(ctx, nil, "/proc/self/exe", etcdCommand, p.a.path("etcd"), url, strconv.Itoa(m.peers)); err != nil {
		return 0, 0, err
	}
	if err := p.a.awaitFile(ctx, p.a.path("etcd/ready")); err != nil {
		return 0, 0, err
	}
	if _, err := p.b.run(ctx, "ip", "route", "add", "default", "via", p.a.underlay.String()); err != nil {
		return 0, 0, err
	}
	argv := append(m.argv, "--etcd-endpoints", url, "--iface", underlayLink, "--subnet-file", p.b.path("subnet.env"))
	if err := p.b.start(ctx, nil, argv...); err != nil {
		return 0, 0, err
	}
	if err := p.b.awaitSubnet(ctx); err != nil {
		return 0, 0, err
	}
	if err := p.b.await(ctx, "all peers", func() bool { return m.hasPeers(ctx, p.b) }); err != nil {
		return 0, 0, err
	}
	select {
	case <-ctx.Done():
		return 0, 0, context.Cause(ctx)
	case <-time.After(memorySettle):
	}
	return memoryBelow(p.b.agent.Process.Pid, filepath.Base(m.argv[0]))
}

// hasPeers reports whether the daemon has all of its peers: as many routes, or a line of the log that says that it is ready.
func (m memoryRow) hasPeers(ctx context.Context, h *host) bool {
	if !m.routes {
		_, err := h.run(ctx, "sh", "-c", "grep -q msg=ready "+h.path("*.log"))
		return err == nil
	}
	out, err := h.run(ctx, "sh", "-c", "ip -4 route show dev flannel.1 | wc -l")
	n, _ := strconv.Atoi(strings.TrimSpace(out))
	return err == nil && n >= m.peers
}

// memoryBelow returns VmRSS and RssAnon of the child of that name, in MB.
func memoryBelow(parent int, name string) (rss, anon float64, err error) {
	files, err := filepath.Glob("/proc/[0-9]*/status")
	if err != nil {
		return 0, 0, err
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		fields := statusFields(string(text))
		if fields["Name"] == name && fields["PPid"] == strconv.Itoa(parent) {
			return megabytes(fields["VmRSS"]), megabytes(fields["RssAnon"]), nil
		}
	}
	return 0, 0, fmt.Errorf("no process %s below %d", name, parent)
}

// statusFields reads /proc/<pid>/status (proc(5)).
func statusFields(text string) map[string]string {
	fields := make(map[string]string)
	for line := range strings.Lines(text) {
		if key, value, ok := strings.Cut(line, ":"); ok {
			fields[key] = strings.TrimSpace(value)
		}
	}
	return fields
}

// megabytes reads a number of KiB, as proc(5) writes it ("9100 kB").
func megabytes(text string) float64 {
	kib, _ := strconv.ParseFloat(strings.TrimSuffix(text, " kB"), 64)
	return kib * 1024 / 1e6
}

// memoryText is a table of rows of memory.
func memoryText(reports []memoryReport) string {
	rows := [][]string{{"", "RSS, MB", "RssAnon, MB", "at most", ""}}
	for _, m := range reports {
		most := "–"
		switch {
		case m.MaxAnon > 0:
			most = fmt.Sprintf("RssAnon %.0f", m.MaxAnon)
		case m.MaxRSS > 0:
			most = fmt.Sprintf("RSS %.0f", m.MaxRSS)
		}
		rows = append(rows, []string{strings.TrimPrefix(m.Name, "memory/"), fmt.Sprintf("%.1f", m.RSS), fmt.Sprintf("%.1f", m.RssAnon), most, m.verdict()})
	}
	return markdown(rows)
}

// putLeases writes the leases of peers that are not there, as flanneld writes them.
func putLeases(ctx context.Context, client *clientv3.Client, peers int) error {
	const batch = 100 // etcd takes 128 operations at most
	var ops []clientv3.Op
	for i := range peers {
		key := fmt.Sprintf("/coreos.com/network/subnets/10.%d.%d.0-24", 64+i>>8, i&255)
		value := fmt.Sprintf(`{"PublicIP":"198.18.%d.%d","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"0a:00:00:00:%02x:%02x"}}`,
			i>>8, i&255, i>>8, i&255)
		if ops = append(ops, clientv3.OpPut(key, value)); len(ops) < batch && i < peers-1 {
			continue
		}
		if _, err := client.Txn(ctx).Then(ops...).Commit(); err != nil {
			return fmt.Errorf("write leases: %w", err)
		}
		ops = ops[:0]
	}
	return nil
}
