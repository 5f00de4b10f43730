package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// twoRows is the report of two rounds of the reference and one other, which had
// no second TCP figure.
func twoRows() *report {
	u := underlayReport{Name: "default", Rows: []rowReport{
		newRowReport(reference, []figures{{"tcp1_gbit_s": 10, "udp64_kpps": 200.5}, {"tcp1_gbit_s": 12, "udp64_kpps": 300}}, nil),
		newRowReport("nebula", []figures{{"tcp1_gbit_s": 2.75, "flood_rtt_us": 60}, {"flood_rtt_us": 70}}, []string{"round 2: TCP 1: it stalled"}),
	}}
	u.addRatios(reference)
	return &report{
		Command: "compare --quick", Start: time.Date(2026, 11, 20, 7, 0, 0, 0, time.UTC), Seconds: 59.4, Rounds: 2, Reference: reference,
		Machine: machine{CPU: "AMD EPYC", CPUs: 2, Kernel: "Linux 6.18", Go: "go1.26", LoadStart: "0.1 0.2 0.3", LoadEnd: "1 1 1"},
		Programs: []*program{
			{Name: "vxlan", Version: "Linux 6.18", Note: "as flannel makes it"},
			{Name: "flanneld", Missing: "no flanneld on this machine"},
		},
		Underlays: []underlayReport{u},
	}
}

func TestRowsAreRelatedToTheReference(t *testing.T) {
	rows := twoRows().Underlays[0].Rows
	want := map[string]summary{
		"tcp1_gbit_s":  {Median: 2.75, Min: 2.75, Max: 2.75, Values: []float64{2.75}, Ratio: 0.25},
		"flood_rtt_us": {Median: 65, Min: 60, Max: 70, Values: []float64{60, 70}}, // the reference has none
	}
	if diff := cmp.Diff(want, rows[1].Metrics); diff != "" {
		t.Errorf("nebula (-want +got):\n%s", diff)
	}
	if got := rows[0].Metrics["udp64_kpps"].Ratio; got != 1 {
		t.Errorf("the reference's ratio to itself is %v", got)
	}
}

func TestReportIsReadBackFromJSON(t *testing.T) {
	path := filepath.Join(t.TempDir(), "report.json")
	want := twoRows()
	if err := want.write(path); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var got report
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, &got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if err := want.write(filepath.Join(path, "x")); err == nil {
		t.Error("written below a file")
	}
}
