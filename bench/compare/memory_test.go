package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestMemoryBelow: this process is found below its parent by its name, with what it takes.
func TestMemoryBelow(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Base(exe)
	rss, anon, err := memoryBelow(os.Getppid(), name[:min(len(name), 15)])
	if err != nil || anon < 0.5 || rss <= anon {
		t.Errorf("RSS %.1f MB, RssAnon %.1f MB, %v", rss, anon, err)
	}
	if _, _, err := memoryBelow(os.Getppid(), "no such program"); err == nil {
		t.Error("a process that is not there is found")
	}
	if n := megabytes(statusFields("Name:\tx\nVmRSS:\t    9100 kB\n")["VmRSS"]); n < 9.31 || n > 9.32 {
		t.Errorf("9100 kB are %f MB", n)
	}
}

// TestMemoryVerdicts: too much of either kind fails, and so the table says.
func TestMemoryVerdicts(t *testing.T) {
	reports := []memoryReport{
		{Name: "memory/a", RSS: 50, RssAnon: 7.4},
		{Name: "memory/b", RSS: 50, RssAnon: 8.1, MaxAnon: 8},
		{Name: "memory/c", RSS: 50, RssAnon: 8, MaxAnon: 8},
		{Name: "memory/d", RSS: 61, RssAnon: 30, MaxRSS: 60},
		{Name: "memory/e", Missing: "no flanneld", MaxRSS: 60},
	}
	text := memoryText(reports)
	for i, want := range []string{"", "FAIL", "PASS", "FAIL", "missing: no flanneld"} {
		if got := reports[i].verdict(); got != want {
			t.Errorf("%s: %q, want %q", reports[i].Name, got, want)
		}
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

// TestSelectMemory: --only chooses among the rows of memory, too.
func TestSelectMemory(t *testing.T) {
	r := &run{options: options{overlayd: "/x/overlayd"}}
	if n := len(r.selectMemory()); n != 9 {
		t.Errorf("%d rows", n)
	}
	r.only = regexp.MustCompile("^memory/flanneld, 3 ")
	if n := len(r.selectMemory()); n != 1 {
		t.Errorf("%d rows of one daemon", n)
	}
	if r.only = regexp.MustCompile("^default/"); r.wantsMemory() {
		t.Error("memory is taken beside rows of traffic")
	}
}
