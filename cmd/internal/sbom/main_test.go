package main

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// TestBill: the bill of this test's own binary has what is linked into it, refers to nothing that it does not have, and is the same twice.
func TestBill(t *testing.T) {
	t.Parallel()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var texts [2]bytes.Buffer
	for i := range texts {
		if err := run(&texts[i], "overlayd", "v0.1.0", time.Unix(1764000000, 0), []string{exe}); err != nil {
			t.Fatal(err)
		}
	}
	if texts[0].String() != texts[1].String() {
		t.Error("two bills of one program differ")
	}
	var bom cdx.BOM
	if err := cdx.NewBOMDecoder(&texts[0], cdx.BOMFileFormatJSON).Decode(&bom); err != nil {
		t.Fatal(err)
	}
	has := map[string]bool{bom.Metadata.Component.BOMRef: true}
	for _, c := range *bom.Components {
		if has[c.BOMRef] {
			t.Errorf("%s is there twice", c.BOMRef)
		}
		has[c.BOMRef] = true
	}
	std := "pkg:golang/std@" + strings.TrimPrefix(runtime.Version(), "go")
	if !has[std] {
		t.Errorf("no %s", std)
	}
	for _, d := range *bom.Dependencies {
		if !has[d.Ref] {
			t.Errorf("a dependency of %s, which is not there", d.Ref)
		}
		for _, ref := range *d.Dependencies {
			if !has[ref] {
				t.Errorf("%s depends on %s, which is not there", d.Ref, ref)
			}
		}
	}
	if bom.Metadata.Timestamp != "2025-11-24T16:00:00Z" || !strings.HasPrefix(bom.SerialNumber, "urn:uuid:") {
		t.Errorf("timestamp %s, serial number %s", bom.Metadata.Timestamp, bom.SerialNumber)
	}
}

// TestBillRefuses: what is no program of Go is named.
func TestBillRefuses(t *testing.T) {
	t.Parallel()
	script := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(script, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, files := range map[string][]string{"a script": {script}, "a missing file": {script + "2"}} {
		err := run(new(bytes.Buffer), "overlayd", "v0.1.0", time.Time{}, files)
		if err == nil || !strings.Contains(err.Error(), filepath.Base(files[0])) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestNotices: the licenses of what is linked are there, with that of Go, and not those of what is not.
func TestNotices(t *testing.T) {
	t.Parallel()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	if err := notices(&text, []string{exe}); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"==== std " + runtime.Version() + ": LICENSE\n", "==== github.com/CycloneDX/cyclonedx-go v", "Apache License"} {
		if !strings.Contains(text.String(), part) {
			t.Errorf("no %q", part)
		}
	}
	if strings.Contains(text.String(), "==== k8s.io/client-go") {
		t.Error("a license of what is not linked")
	}
}
