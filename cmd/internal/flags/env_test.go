package flags

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// TestPrecedence: a flag wins over OVERLAYD_, that over FLANNELD_, that over the default.
func TestPrecedence(t *testing.T) {
	for _, c := range []struct {
		name string
		args []string
		env  map[string]string
		want string
	}{
		{"default", nil, nil, "/coreos.com/network"},
		{"flannel's", nil, map[string]string{"FLANNELD_ETCD_PREFIX": "/f"}, "/f"},
		{"ours wins", nil, map[string]string{"FLANNELD_ETCD_PREFIX": "/f", "OVERLAYD_ETCD_PREFIX": "/o"}, "/o"},
		{"an empty variable does not count", nil, map[string]string{"FLANNELD_ETCD_PREFIX": "/f", "OVERLAYD_ETCD_PREFIX": ""}, "/f"},
		{"flag wins", []string{"--etcd-prefix=/x"}, map[string]string{"OVERLAYD_ETCD_PREFIX": "/o"}, "/x"},
		{"one dash", []string{"-etcd-prefix", "/x"}, nil, "/x"},
		{"as flannel joins it", []string{"-etcd-prefix", "x//y/"}, nil, "x/y"},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := new(Flags)
			f := pflag.NewFlagSet("overlayd", pflag.ContinueOnError)
			o.Register(f)
			if err := f.Parse(Normalize(f, c.args)); err != nil {
				t.Fatal(err)
			}
			err := o.Complete(f, func(k string) (string, bool) { v, ok := c.env[k]; return v, ok })
			if err != nil || o.Etcd.Prefix != c.want {
				t.Errorf("got %q, %v; want %q", o.Etcd.Prefix, err, c.want)
			}
		})
	}
}

func TestBadEnvironment(t *testing.T) {
	o := new(Flags)
	f := pflag.NewFlagSet("overlayd", pflag.ContinueOnError)
	o.Register(f)
	err := o.Complete(f, func(k string) (string, bool) { return "soon", k == "FLANNELD_SUBNET_LEASE_RENEW_MARGIN" })
	if err == nil || !strings.Contains(err.Error(), "FLANNELD_SUBNET_LEASE_RENEW_MARGIN") || !strings.Contains(err.Error(), "soon") {
		t.Errorf("got %v", err)
	}
	o, f = new(Flags), pflag.NewFlagSet("overlayd", pflag.ContinueOnError)
	o.Register(f)
	err = o.Complete(f, func(k string) (string, bool) { return `"http://u:secret@h:1`, k == "OVERLAYD_ETCD_ENDPOINTS" })
	if err == nil || !strings.Contains(err.Error(), "--etcd-endpoints") || strings.Contains(err.Error(), "secret") {
		t.Errorf("got %v", err)
	}
}

// TestLogFormat: the format is known though the command line is wrong otherwise.
func TestLogFormat(t *testing.T) {
	for _, c := range []struct {
		args string
		env  map[string]string
		want string
	}{
		{"", nil, ""},
		{"--log-format=json", nil, "json"},
		{"--log-format json --unknown", nil, "json"},
		{"--unknown value -x --log-format=json", nil, "json"},
		{"--help --log-format=json", nil, ""},
		{"-- --log-format=json", nil, ""},
		{"", map[string]string{"FLANNELD_LOG_FORMAT": "json"}, "json"},
		{"--log-format=text", map[string]string{"OVERLAYD_LOG_FORMAT": "json"}, "text"},
	} {
		_, f := registered()
		env := func(k string) (string, bool) { v, ok := c.env[k]; return v, ok }
		if got := LogFormat(f, Normalize(f, strings.Fields(c.args)), env); got != c.want {
			t.Errorf("%q %v: %q, want %q", c.args, c.env, got, c.want)
		}
		none := pflag.NewFlagSet("version", pflag.ContinueOnError)
		if got := LogFormat(none, strings.Fields(c.args), env); got != "" {
			t.Errorf("%q of a command without the flag: %q", c.args, got)
		}
	}
}
