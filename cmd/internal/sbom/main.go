// Command sbom writes the software bill of materials of programs that Go has built, in CycloneDX 1.6 (JSON), from the build info
// that is in each of them: it lists what was linked, and not what go.mod names. The same programs give the same file.
//
//	go run ./cmd/internal/sbom --version v0.1.0 --date 1764000000 overlayd overlayd-capture > sbom.cdx.json
//	go run ./cmd/internal/sbom --notices overlayd overlayd-capture > NOTICES
package main

import (
	"debug/buildinfo"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

func main() {
	name := flag.String("name", "overlayd", "of what the programs are")
	version := flag.String("version", "", "of it")
	date := flag.Int64("date", 0, "time of the commit, in seconds since 1970")
	licenses := flag.Bool("notices", false, "write the licenses of what is linked, instead of the bill")
	flag.Parse()
	err := errors.New("want the files of programs that Go has built")
	switch {
	case flag.NArg() == 0:
	case *licenses:
		err = notices(os.Stdout, flag.Args())
	default:
		err = run(os.Stdout, *name, *version, time.Unix(*date, 0), flag.Args())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

// run writes the bill of materials of some programs.
func run(to io.Writer, name, version string, date time.Time, files []string) error {
	b := newBill(name, version, date)
	for _, file := range files {
		info, err := buildinfo.ReadFile(file)
		if err != nil {
			return err
		}
		if err := b.add(file, info); err != nil {
			return err
		}
	}
	return cdx.NewBOMEncoder(to, cdx.BOMFileFormatJSON).SetPretty(true).EncodeVersion(b.bom(), cdx.SpecVersion1_6)
}
