package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/overlayd/overlayd/cmd/internal/netconf"
)

// TestCheckConfig: a good config is printed with its defaults, and of a bad one every
// problem with its place.
func TestCheckConfig(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		name, text string
		code       int
		says       []string
	}{
		{"defaults", `{"Network":"10.5.0.0/16"}`, 0, []string{"SubnetLen 24", "SubnetMin 10.5.1.0", "SubnetMax 10.5.255.0", "Backend.Type vxlan", "Backend.VNI 1", "Backend.Port 8472", "Backend.MTU that of the underlay interface", "dataplanes kernel, userspace"}},
		{"any case", `{"network":"10.5.0.0/16","BACKEND":{"vni":7}}`, 0, []string{"Backend.VNI 7"}},
		{"IPv6 only", `{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00:5::/48"}`, 0, []string{"IPv6SubnetLen 64", "IPv6SubnetMin fd00:5:0:1::"}},
		{"kernel only", `{"Network":"10.5.0.0/16","Backend":{"GBP":true}}`, 0, []string{"dataplanes kernel"}},
		{"empty", ``, 2, []string{":1:1: read JSON: it ends before"}},
		{"too long", `{"Network":"10.5.0.0/16"}` + strings.Repeat(" ", 1<<20), 2, []string{"config.json has more than 1048576 bytes"}},
		{"cut off", "{\n  \"Network\": \"10.5.0.0/16\",\n", 2, []string{":3:1: read JSON: it ends before"}},
		{"comma missing", "{\n  \"Network\": \"10.5.0.0/16\"\n  \"SubnetLen\": 24\n}", 2, []string{":3:3: read JSON: invalid character"}},
		{"comma too many", "{\"Network\": \"10.5.0.0/16\",}", 2, []string{":1:"}},
		{"two values", `{"Network":"10.5.0.0/16"} x`, 2, []string{":1:27: read JSON"}},
		{"a list", `[]`, 2, []string{":1:1: \"top level\": want an object"}},
		{"unknown", "{\"Network\":\"10.5.0.0/16\",\n \"Subnetlen\": 24, \"Subnetmn\": \"10.5.9.0\",\n\"Backend\":{\"Typ\":\"vxlan\", \"zzz\": 1}}", 2,
			[]string{`:2:19: "Subnetmn" is not a key`, `do you mean "SubnetMin"?`, `:3:12: "Backend.Typ" is not a key`, `do you mean "Backend.Type"?`, `:3:27: "Backend.zzz" is not a key of a network config`}},
		{"at the wrong level", `{"Network":"10.5.0.0/16","VNI":3,"Backend":{"SubnetLen":25}}`, 2, []string{`do you mean "Backend.VNI"?`, `do you mean "SubnetLen"?`}},
		{"twice", `{"Network":"10.5.0.0/16","Backend":{"VNI":2,"vni":3}}`, 2, []string{`:1:37: "Backend.VNI" is given again later`}},
		{"wrong type", "{\"Network\":\"10.5.0.0/16\",\n\"SubnetLen\":\"24\"}", 2, []string{`:2:1: "SubnetLen": want a whole number from 0, got JSON string`}},
		{"backend's wrong type", "{\"Network\":\"10.5.0.0/16\",\n\"Backend\":{\n  \"Port\":\"x\"}}", 2, []string{`:3:3: "Backend.Port"`}},
		{"out of range", "{\"Network\":\"10.5.0.0/16\",\n\"Backend\":{\n  \"vni\":16777216}}", 2, []string{`:3:3: Backend.VNI 16777216 is not in`}},
		{"does not fit", "{\"SubnetMin\":\"10.6.0.0\",\n\"Network\":\"10.5.0.0/16\"}", 2, []string{`:1:2: SubnetMin is not in the range`}},
		{"too few subnets", "{\"Network\":\"10.5.0.0/16\",\n\"SubnetLen\":17}", 2, []string{`:2:1: network must be able`}},
		{"too few IPv6 subnets", "{\"Network\":\"10.5.0.0/16\",\"EnableIPv6\":true,\n\"IPv6Network\":\"fd00::/48\",\n\"IPv6SubnetLen\":49}", 2, []string{`:3:1: IPv6Network must be able`}},
		{"IPv6 network too small", "{\"Network\":\"10.5.0.0/16\",\"EnableIPv6\":true,\n\"IPv6Network\":\"fd00::/125\"}", 2, []string{`:2:1: IPv6Network is too small`}},
		{"no network", `{}`, 2, []string{`:1:1: please define a correct Network`}},
		{"backend type", "{\"Network\":\"10.5.0.0/16\",\n\"Backend\":{\"Type\":\"ipip\"}}", 2, []string{`:2:12: backend type "ipip"`, "DirectRouting"}},
		{"host-gw", `{"Network":"10.5.0.0/16","Backend":{"Type":"host-gw"}}`, 0, []string{"Backend.Type host-gw dataplanes none needed"}},
		{"VNI of no device", "{\"Network\":\"10.5.0.0/16\",\n\"Backend\":{\n  \"vni\":16777215}}", 2, []string{`:3:3: Backend.VNI: 16777215: want at most 9999999`}},
		{"IPv6 in few bytes", "{\"Network\":\"10.5.0.0/16\",\n\"EnableIPv6\":true,\"IPv6Network\":\"fd00::/48\",\"Backend\":{\"MTU\":1300}}", 2, []string{`:2:1: EnableIPv6: the overlay has an MTU of 1250`}},
		{"no backend", `{"Network":"10.5.0.0/16"}`, 0, []string{"Backend.Type vxlan", "without a Backend flanneld runs udp"}},
		{"each mistake", "{\"Network\":\"10.5.0.0/16\",\n\"SubnetLen\":31,\n\"SubnetMin\":\"x\",\n\"Subnetmx\":1,\n\"Backend\":{\"Type\":\"vxlann\",\n\"VNI\":-1,\n\"Port\":70000,\n\"MTU\":\"x\"}}", 2,
			[]string{":2:1: SubnetLen", ":3:1: SubnetMin", `:4:1: "Subnetmx" is not a key`, `:5:12: backend type "vxlann"`, ":6:1: Backend.VNI", ":7:1: Backend.Port", `:8:1: "Backend.MTU"`}},
		{"deep", strings.Repeat("[", 20000), 2, []string{":1:"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			file := filepath.Join(dir, "config.json")
			if err := os.WriteFile(file, []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
			code, out := overlayd(t, "check", "config", file)
			flat := strings.Join(strings.Fields(out), " ")
			if code != c.code {
				t.Errorf("exit code %d:\n%s", code, out)
			}
			for _, part := range c.says {
				if !strings.Contains(flat, part) {
					t.Errorf("does not say %q:\n%.2000s", part, out)
				}
			}
		})
	}
	file := filepath.Join(dir, "config.json")
	if err := os.WriteFile(file, []byte("{\"Network\":\"10.5.0.0/16\",\n \"Subnetmn\":1, \"SubnetLen\":\"24\"}"), 0o600); err != nil {
		t.Fatal(err)
	}
	code, out := overlayd(t, "check", "config", "-o", "json", file)
	var got struct{ Errors []netconf.Problem }
	err := json.Unmarshal([]byte(out), &got)
	want := []netconf.Problem{{Line: 2, Column: 2, Key: "Subnetmn", Message: `"Subnetmn" is not a key of a network config: do you mean "SubnetMin"?`}, {Line: 2, Column: 16, Key: "SubnetLen", Message: `"SubnetLen": want a whole number from 0, got JSON string`}}
	if code != exitUsage || err != nil || !slices.Equal(got.Errors, want) {
		t.Errorf("exit code %d, %v: %s", code, err, out)
	}
	for kind, want := range map[string]bool{"vxlan": true, "host-gw": false, "alloc": false} {
		if err := os.WriteFile(file, []byte(`{"Network":"10.5.0.0/16","Backend":{"Type":"`+kind+`"}}`), 0o600); err != nil {
			t.Fatal(err)
		}
		if code, out := overlayd(t, "check", "config", "-o", "json", file); code != 0 || strings.Contains(out, `"Dataplanes"`) != want {
			t.Errorf("%s: exit code %d, want dataplanes %v:\n%s", kind, code, want, out)
		}
	}
	code, out = overlayd(t, "check", "config", "-o", "json", filepath.Join(dir, "none"))
	if code != exitUsage || !strings.Contains(out, "none") {
		t.Errorf("missing file: exit code %d: %s", code, out)
	}
}
