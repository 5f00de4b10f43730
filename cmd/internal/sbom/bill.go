package main

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// bill collects what is in some programs.
type bill struct {
	whole        cdx.Component // of which the programs are parts
	date         time.Time
	programs     []cdx.Component
	modules      map[string]cdx.Component // by reference
	dependencies []cdx.Dependency         // of the programs
}

func newBill(name, version string, date time.Time) *bill {
	return &bill{
		whole:   cdx.Component{BOMRef: name, Type: cdx.ComponentTypeApplication, Name: name, Version: version, Licenses: licensed()},
		date:    date,
		modules: map[string]cdx.Component{},
	}
}

// licensed is this module's license.
func licensed() *cdx.Licenses {
	return &cdx.Licenses{{License: &cdx.License{ID: "Apache-2.0"}}}
}

// add adds a program, the modules that are linked into it, and the standard library.
func (b *bill) add(file string, info *debug.BuildInfo) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(text)
	name := filepath.Base(file)
	var uses []string
	for _, m := range append([]*debug.Module{{Path: "std", Version: strings.TrimPrefix(info.GoVersion, "go")}}, info.Deps...) {
		if m.Replace != nil {
			m = m.Replace
		}
		c, err := module(m)
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		b.modules[c.BOMRef] = c
		uses = append(uses, c.BOMRef)
	}
	slices.Sort(uses)
	b.programs = append(b.programs, cdx.Component{
		BOMRef: b.whole.Name + "/" + name, Type: cdx.ComponentTypeApplication, Name: name, Version: b.whole.Version, Licenses: licensed(),
		Hashes:     &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: hex.EncodeToString(sum[:])}},
		Properties: settings(info),
	})
	b.dependencies = append(b.dependencies, cdx.Dependency{Ref: b.whole.Name + "/" + name, Dependencies: &uses})
	return nil
}

// settings are what a program was built for.
func settings(info *debug.BuildInfo) *[]cdx.Property {
	properties := []cdx.Property{{Name: "go:package", Value: info.Path}}
	for _, s := range info.Settings {
		if strings.HasPrefix(s.Key, "GO") || s.Key == "CGO_ENABLED" || s.Key == "-tags" {
			properties = append(properties, cdx.Property{Name: "go:" + s.Key, Value: s.Value})
		}
	}
	return &properties
}

// module describes a module. Its sum is that of go.sum, which is a SHA-256 of its files' (golang.org/x/mod/sumdb/dirhash).
func module(m *debug.Module) (c cdx.Component, err error) {
	// A purl of type golang is in lower case (https://github.com/package-url/purl-spec).
	purl := "pkg:golang/" + strings.ToLower(m.Path) + "@" + strings.ReplaceAll(m.Version, "+", "%2B")
	c = cdx.Component{BOMRef: purl, Type: cdx.ComponentTypeLibrary, Name: m.Path, Version: m.Version, PackageURL: purl, Scope: cdx.ScopeRequired}
	if m.Sum == "" { // the standard library has none
		return c, nil
	}
	sum, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(m.Sum, "h1:"))
	if err != nil {
		return c, fmt.Errorf("sum %q of %s: %w", m.Sum, m.Path, err)
	}
	c.Hashes = &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: hex.EncodeToString(sum)}}
	return c, nil
}

// bom returns the whole. Its serial number is made of what is in it, so that it is the same for the same programs.
func (b *bill) bom() *cdx.BOM {
	modules := slices.SortedFunc(maps.Values(b.modules), func(a, c cdx.Component) int { return cmp.Compare(a.BOMRef, c.BOMRef) })
	components := append(slices.Clone(b.programs), modules...)
	var parts []string
	for _, p := range b.programs {
		parts = append(parts, p.BOMRef)
	}
	dependencies := append([]cdx.Dependency{{Ref: b.whole.BOMRef, Dependencies: &parts}}, b.dependencies...)
	bom := cdx.NewBOM()
	bom.SerialNumber = serial(b.whole, components)
	bom.Metadata = &cdx.Metadata{Timestamp: b.date.UTC().Format(time.RFC3339), Component: &b.whole}
	bom.Components, bom.Dependencies = &components, &dependencies
	return bom
}

// serial makes a UUID of version 8 (RFC 9562 section 5.8) of names, versions and hashes.
func serial(whole cdx.Component, components []cdx.Component) string {
	h := sha256.New()
	fmt.Fprintln(h, whole.Name, whole.Version)
	for _, c := range components {
		fmt.Fprintln(h, c.BOMRef, c.Version)
		if c.Hashes != nil {
			fmt.Fprintln(h, *c.Hashes)
		}
	}
	id := h.Sum(nil)[:16]
	id[6], id[8] = id[6]&0x0f|0x80, id[8]&0x3f|0x80
	return fmt.Sprintf("urn:uuid:%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:])
}
