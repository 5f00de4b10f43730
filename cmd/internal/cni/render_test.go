package cni

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
)

const (
	env4    = "FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=10.5.1.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"
	env6    = "FLANNEL_IPV6_NETWORK=fd10:5::/48\nFLANNEL_IPV6_SUBNET=fd10:5:0:1::1/64\nFLANNEL_MTU=1430\nFLANNEL_IPMASQ=false\n"
	envDual = env4 + env6
)

// writeEnv makes a subnet file.
func writeEnv(t testing.TB, text string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "subnet.env")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// rendered is what the delegate gets.
func rendered(conf, env string, t testing.TB) (object, error) {
	e, err := readEnv(writeEnv(t, env))
	if err != nil {
		return nil, err
	}
	c, err := parse([]byte(conf))
	if err != nil {
		return nil, err
	}
	return c.render(e)
}

// TestRender: the delegate gets what flannel's plugin gives it. TestFlanneldCNIConfig compares with the plugin itself.
func TestRender(t *testing.T) {
	t.Parallel()
	const ipam4 = `{"type":"host-local","ranges":[[{"subnet":"10.5.1.0/24"}]],"routes":[{"dst":"10.5.0.0/16"}]}`
	for name, c := range map[string]struct{ conf, env, want string }{
		"IPv4": {`{"name":"n","type":"flannel","cniVersion":"1.0.0"}`, env4,
			`{"name":"n","cniVersion":"1.0.0","type":"bridge","isGateway":true,"ipMasq":false,"mtu":1450,"ipam":` + ipam4 + `}`},
		"dual-stack, and the daemon does not masquerade": {`{"name":"n","type":"flannel","cniVersion":"1.1.0"}`, envDual,
			`{"name":"n","cniVersion":"1.1.0","type":"bridge","isGateway":true,"ipMasq":true,"mtu":1430,"ipam":{"type":"host-local",
			"ranges":[[{"subnet":"10.5.1.0/24"}],[{"subnet":"fd10:5:0:1::/64"}]],"routes":[{"dst":"10.5.0.0/16"},{"dst":"fd10:5::/48"}]}}`},
		"IPv6": {`{"name":"n","type":"flannel"}`, env6, `{"name":"n","cniVersion":"0.1.0","type":"bridge","isGateway":true,"ipMasq":true,"mtu":1430,"ipam":{"type":"host-local",
			"ranges":[[{"subnet":"fd10:5:0:1::/64"}]],"routes":[{"dst":"fd10:5::/48"}]}}`},
		"several networks": {`{"name":"n","type":"flannel"}`, strings.Replace(env4, "/16", "/16,10.6.0.0/16", 1), `{"name":"n","cniVersion":"0.1.0","type":"bridge","isGateway":true,"ipMasq":false,
			"mtu":1450,"ipam":{"type":"host-local","ranges":[[{"subnet":"10.5.1.0/24"}]],"routes":[{"dst":"10.5.0.0/16"},{"dst":"10.6.0.0/16"}]}}`},
		"ptp": {`{"name":"n","type":"flannel","delegate":{"type":"ptp"}}`, env4, `{"name":"n","cniVersion":"0.1.0","type":"ptp","ipMasq":false,"mtu":1450,"ipam":` + ipam4 + `}`},
		"what delegate says wins": {`{"name":"n","type":"flannel","delegate":{"type":"bridge","bridge":"br9","isGateway":false,"ipMasq":true,"mtu":1200,"hairpinMode":true,"big":12345678901234567890}}`, env4,
			`{"name":"n","cniVersion":"0.1.0","type":"bridge","bridge":"br9","isGateway":false,"ipMasq":true,"mtu":1200,"hairpinMode":true,"big":12345678901234567890,"ipam":` + ipam4 + `}`},
		"ipam and runtimeConfig": {`{"name":"n","type":"flannel","runtimeConfig":{"portMappings":[{"hostPort":80}]},"ipam":{"type":"mine","dataDir":"/d","ranges":[1],"routes":[{"dst":"192.0.2.0/24","gw":"10.5.1.9","mtu":1300}]}}`, env4,
			`{"name":"n","cniVersion":"0.1.0","type":"bridge","isGateway":true,"ipMasq":false,"mtu":1450,"runtimeConfig":{"portMappings":[{"hostPort":80}]},
			"ipam":{"type":"mine","dataDir":"/d","ranges":[[{"subnet":"10.5.1.0/24"}]],"routes":[{"dst":"192.0.2.0/24","gw":"10.5.1.9","mtu":1300},{"dst":"10.5.0.0/16"}]}}`},
		"nothing is null": {`{"name":"n","type":"flannel","runtimeConfig":null,"delegate":null,"ipam":null}`, env4,
			`{"name":"n","cniVersion":"0.1.0","type":"bridge","isGateway":true,"ipMasq":false,"mtu":1450,"ipam":` + ipam4 + `}`},
	} {
		got, err := rendered(c.conf, c.env, t)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if g, w := normal(t, encode(got)), normal(t, []byte(c.want)); !reflect.DeepEqual(g, w) {
			t.Errorf("%s:\n%s\nwant\n%s", name, encode(got), encode(w))
		}
	}
}

func normal(t testing.TB, text []byte) (v any) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(string(text)))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return v
}

// TestConfigRefused: an error has the key and the value, and the code of CNI.
func TestConfigRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		conf, want string
		code       uint
	}{
		{`{"name":"n","delegate":{"name":"x"}}`, "delegate.name", types.ErrInvalidNetworkConfig},
		{`{"name":"n","delegate":{"ipam":{}}}`, "delegate.ipam", types.ErrInvalidNetworkConfig},
		{`{"name":"n","delegate":{"type":7}}`, "delegate.type: 7", types.ErrInvalidNetworkConfig},
		{`{"name":"n","delegate":{"type":""}}`, "delegate.type", types.ErrInvalidNetworkConfig},
		{`{"name":"n","delegate":{"type":"../bridge"}}`, `delegate.type: "../bridge"`, types.ErrInvalidNetworkConfig},
		{`{"name":"n","delegate":{"type":".."}}`, `delegate.type: ".."`, types.ErrInvalidNetworkConfig},
		{`{"name":"n","type":"flannel","delegate":{"type":"flannel"}}`, "this plugin itself", types.ErrInvalidNetworkConfig},
		{`{"name":"n","delegate":[]}`, "delegate", types.ErrDecodingFailure},
		{`{"name":"n","ipam":"x"}`, "ipam", types.ErrDecodingFailure},
		{`{"name":"n","ipam":{"type":"a/b"}}`, `ipam.type: "a/b"`, types.ErrInvalidNetworkConfig},
		{`{"name":"n","ipam":{"routes":7}}`, "ipam.routes", types.ErrInvalidNetworkConfig},
		{`{"name":"n","ipam":{"routes":[{"dst":"x"}]}}`, "ipam.routes", types.ErrInvalidNetworkConfig},
		{`{"name":"n","subnetFile":"subnet.env"}`, `subnetFile: "subnet.env"`, types.ErrInvalidNetworkConfig},
		{`{"name":"n","dataDir":""}`, `dataDir: ""`, types.ErrInvalidNetworkConfig},
		{`{"name":`, "network config", types.ErrDecodingFailure},
		{``, "network config", types.ErrDecodingFailure},
	} {
		_, err := rendered(c.conf, env4, t)
		if e := new(types.Error); !errors.As(err, &e) || e.Code != c.code || !strings.Contains(e.Msg, c.want) {
			t.Errorf("%s: %v, want code %d and %q", c.conf, err, c.code, c.want)
		}
	}
}

// TestEnvRefused: half a subnet file, or a wrong one, makes no pod, and the error names the line.
func TestEnvRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ env, want string }{
		{"", "FLANNEL_SUBNET"},
		{"\x00\xff garbage", "FLANNEL_SUBNET"},
		{env4[:20], `FLANNEL_SUBNET=""`},
		{"FLANNEL_SUBNET=10.5.1.1/24\n", `FLANNEL_NETWORK=""`},
		{"FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=10.5.1.1/24\n", "FLANNEL_MTU"},
		{"FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=10.5.1.1/24\nFLANNEL_MTU=1450\n", "FLANNEL_IPMASQ"},
		{strings.Replace(env4, "true", "tru", 1), `FLANNEL_IPMASQ="tru"`},
		{strings.Replace(env4, "1450", "14", 1), `FLANNEL_MTU="14"`},
		{strings.Replace(env4, "1450", "-1", 1), "FLANNEL_MTU"},
		{strings.Replace(env4, "1450", "99999999999999999999", 1), "FLANNEL_MTU"},
		{strings.Replace(env4, "10.5.1.1/24", "10.5.1.1", 1), `FLANNEL_SUBNET="10.5.1.1"`},
		{strings.Replace(env4, "10.5.1.1/24", "fd10::1/64", 1), "FLANNEL_SUBNET"},
		{strings.Replace(env4, "10.5.1.1/24", "::ffff:10.5.1.1/120", 1), "FLANNEL_SUBNET"},
		{strings.Replace(env4, "10.5.1.1/24", "10.5.1.1/24,10.5.2.1/24", 1), "FLANNEL_SUBNET"},
		{strings.Replace(env4, "10.5.0.0/16", "0.0.0.0/0", 1), "FLANNEL_NETWORK"},
		{strings.Replace(env4, "10.5.0.0/16", "10.5.0.0/16,x", 1), "FLANNEL_NETWORK"},
		{strings.Replace(env4, "10.5.0.0/16", strings.Repeat("10.5.0.0/16,", 64)+"10.5.0.0/16", 1), "65 networks"},
		{strings.Replace(env6, "fd10:5:0:1::1/64", "10.5.1.1/24", 1), "FLANNEL_IPV6_SUBNET"},
		{strings.Replace(env6, "fd10:5:0:1::1/64", "fd10::1%eth0/64", 1), "FLANNEL_IPV6_SUBNET"},
	} {
		_, err := readEnv(writeEnv(t, c.env))
		if e := new(types.Error); !errors.As(err, &e) || e.Code != types.ErrTryAgainLater || !strings.Contains(e.Msg, c.want) || !strings.Contains(e.Msg, "subnet.env") {
			t.Errorf("%q: %v, want %q", c.env, err, c.want)
		}
	}
	_, err := readEnv(filepath.Join(t.TempDir(), "none"))
	if e := new(types.Error); !errors.As(err, &e) || e.Code != types.ErrTryAgainLater || !strings.Contains(e.Msg, "no such file or directory") {
		t.Errorf("no file: %v", err)
	}
	if _, err := readEnv("/dev/zero"); err == nil {
		t.Error("a device is read")
	}
}

// FuzzRender: whatever config and subnet file say, there is an error with a code, or a config of another plugin for this network.
func FuzzRender(f *testing.F) {
	f.Add(`{"name":"n","type":"flannel","delegate":{"type":"ptp"},"ipam":{"routes":[]}}`, env4)
	f.Add(`{"name":"n","cniVersion":"1.1.0","runtimeConfig":{},"prevResult":{"ips":[]}}`, envDual)
	f.Add(`{"delegate":{"type":null,"mtu":[]},"ipam":{"type":"x","ranges":null}}`, env6)
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, conf, env string) {
		path := filepath.Join(dir, "subnet.env")
		if err := os.WriteFile(path, []byte(env), 0o600); err != nil {
			t.Fatal(err)
		}
		coded := func(err error) {
			if e := new(types.Error); !errors.As(err, &e) || e.Code == 0 {
				t.Fatalf("no error of CNI: %v", err)
			}
		}
		e, err := readEnv(path)
		if err != nil {
			coded(err)
			return
		}
		c, err := parse([]byte(conf))
		if err != nil {
			coded(err)
			return
		}
		o, err := c.render(e)
		if err != nil {
			coded(err)
			return
		}
		var back struct{ Name, Type string }
		if err := json.Unmarshal(encode(o), &back); err != nil || o.text("name") != c.Name || o.text("type") == "" || strings.Contains(o.text("type"), "/") || o.text("type") == c.Type {
			t.Fatalf("%s: %v", encode(o), err)
		}
		for _, p := range append(e.subnets, e.networks...) {
			if !p.IsValid() || p != p.Masked() {
				t.Fatalf("prefix %s", p)
			}
		}
	})
}
