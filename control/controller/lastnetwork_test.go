package controller_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/controller"
)

// TestLastNetwork: a leases file tells the network config that was in force, whatever is in that.
func TestLastNetwork(t *testing.T) {
	for name, text := range map[string]string{
		"defaults":      `{"Network":"10.3.0.0/16"}`,
		"all of vxlan":  `{"Network":"10.3.0.0/16","SubnetLen":24,"SubnetMin":"10.3.1.0","SubnetMax":"10.3.9.0","EnableNFTables":true,"Backend":{"Type":"vxlan","VNI":7,"Port":4789,"MTU":1400,"DirectRouting":true}}`,
		"both families": `{"Network":"10.3.0.0/16","EnableIPv6":true,"IPv6Network":"2001:db8::/48","IPv6SubnetMin":"2001:db8:0:1::"}`,
		"host-gw":       `{"Network":"10.3.0.0/16","Backend":{"Type":"host-gw"}}`,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				want, err := control.ParseNetwork([]byte(text))
				if err != nil {
					t.Fatal(err)
				}
				b := newBench(t)
				b.memory.SetConfig(t, []byte(text))
				cfg := b.config(b.memory.Open(t))
				cfg.Network, cfg.SubnetFile = want, b.file
				b.run(controller.New(cfg))
				time.Sleep(leasesWritten)
				if got, err := controller.LastNetwork(b.file); err != nil || got != want {
					t.Errorf("got %+v, %v, want %+v", got, err, want)
				}
			})
		})
	}
}

// TestNoLastNetwork: what is not a whole config of the networks in the first line is none.
func TestNoLastNetwork(t *testing.T) {
	const head, whole = "overlayd leases 1 [10.3.0.0/16]\n", `config {"EnableIPv4":true,"Network":"10.3.0.0/16","Backend":{"Type":"vxlan","VNI":1}}`
	for name, tt := range map[string]struct{ text, err string }{
		"whole":               {head + whole + "\n", ""},
		"of an older version": {head + "lengths [24]\n", "no network config"},
		"empty":               {"", "no network config"},
		"cut off":             {head + whole[:40], "unexpected EOF"},
		"of a later version":  {head + strings.Replace(whole, `"EnableIPv4"`, `"New":1,"EnableIPv4"`, 1), `unknown field "New"`},
		"of another network":  {strings.Replace(head, "10.3", "10.4", 1) + whole, "first line"},
		"no address":          {head + strings.Replace(whole, "10.3.0.0", "300.3.0.0", 1), "300.3.0.0"},
		"without a network":   {head + "config {}", "first line"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "subnet.env")
			if err := os.WriteFile(controller.LeasesFile(file), []byte(tt.text), 0o600); err != nil {
				t.Fatal(err)
			}
			n, err := controller.LastNetwork(file)
			switch {
			case tt.err == "" && err != nil, tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)):
				t.Errorf("got %+v, %v, want an error with %q", n, err, tt.err)
			case errors.Is(err, fs.ErrNotExist) != (tt.err == "no network config"):
				t.Errorf("%v: says wrongly whether there is one", err)
			}
		})
	}
}
