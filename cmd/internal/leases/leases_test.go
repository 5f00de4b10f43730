package leases

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/overlayd/overlayd/cmd/internal/flags"
	"github.com/overlayd/overlayd/cmd/internal/nodefile"
	"github.com/overlayd/overlayd/cmd/internal/processtest"
	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/etcd"
	"github.com/overlayd/overlayd/dataplane"
)

// asDaemon is set in a process that stands for a daemon: it holds the subnet file that it names. Its arguments are a daemon's.
const asDaemon = "LEASES_TEST_SUBNET_FILE"

func TestMain(m *testing.M) {
	file := os.Getenv(asDaemon)
	if file == "" {
		os.Exit(m.Run())
	}
	if _, err := nodefile.Claim(file); err != nil {
		fmt.Println(err)
	}
	fmt.Println("holds it")
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// TestFlagsOfDaemon: paths are of the directory of the process to which they were given, and a daemon whose flags cannot be read
// is no reason to ask the etcd of the defaults.
func TestFlagsOfDaemon(t *testing.T) {
	dir, here := t.TempDir(), t.TempDir()
	t.Chdir(here)
	for _, c := range []struct {
		daemon, own string
		want, says  string
	}{
		{"--etcd-embedded --etcd-data-dir etcd", "", "unix://" + dir + "/etcd/client.sock", ""},
		{"--etcd-embedded --etcd-data-dir etcd", "--etcd-data-dir=other", "unix://" + here + "/other/client.sock", ""},
		{"--etcd-endpoints unix://etcd.sock", "", "unix://" + dir + "/etcd.sock", ""},
		{"--etcd-endpoints http://192.0.2.50:1 --etcd-username u --etcd-password-file absent", "", "", "open " + dir + "/absent"},
		{"--etcd-endpoints http://192.0.2.50:1 --env-file absent", "", "", "want an absolute path"},
		{"--no-such-flag", "", "", "no-such-flag"},
		{"--etcd-endpoints http://192.0.2.50:1 --etcd-username u --etcd-password-file absent", "--etcd-endpoints=http://192.0.2.51:1", "http://192.0.2.51:1", ""},
		{"drain", "", "http://127.0.0.1:4001", ""},
	} {
		file := filepath.Join(dir, "subnet.env")
		line, end := processtest.Run(t, asDaemon, file, func(cmd *exec.Cmd) { cmd.Dir, cmd.Args = dir, append(cmd.Args, strings.Fields(c.daemon)...) })
		o, f := &Flags{Etcd: new(flags.Etcd)}, pflag.NewFlagSet("", pflag.ContinueOnError)
		o.Etcd.Register(f)
		f.StringVar(&o.SubnetFile, "subnet-file", "", "")
		if err := f.Parse(append(strings.Fields(c.own), "--subnet-file="+file)); err != nil || line != "holds it" {
			t.Fatal(line, err)
		}
		err := o.Complete(f)
		end()
		switch {
		case c.says == "" && (err != nil || o.Etcd.Endpoints[0] != c.want):
			t.Errorf("%+v: endpoints %q, %v", c, o.Etcd.Endpoints, err)
		case c.says != "" && (!errors.Is(err, ErrUnknown) || !strings.Contains(err.Error(), c.says) || !strings.Contains(dataplane.FixOf(err), "--etcd-endpoints")):
			t.Errorf("%+v: %v, fix %q", c, err, dataplane.FixOf(err))
		}
	}
}

// TestParseReservation: one or two subnets, and an address of each family that others can send to.
func TestParseReservation(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ subnets, public, public6, says string }{
		{"10.5.34.0/24", "192.0.2.9", "", ""},
		{"10.5.34.0/24,fd10:5:0:34::/64", "192.0.2.9", "2001:db8::9", ""},
		{"fd10:5:0:34::/64", "", "2001:db8::9", ""},
		{"10.5.34.1/24", "192.0.2.9", "", `"10.5.34.1/24" is not a subnet`},
		{"::ffff:10.5.34.0/120", "192.0.2.9", "", "is not a subnet"},
		{"10.5.34.0/24,10.5.35.0/24", "192.0.2.9", "", "one subnet of each family"},
		{"10.5.34.0/24", "", "", "--public-ip, --public-ipv6: want the address"},
		{"10.5.34.0/24", "127.0.0.1", "", `--public-ip: "127.0.0.1"`},
		{"10.5.34.0/24", "", "fe80::1%eth0", `--public-ipv6: "fe80::1%eth0"`},
		{"10.5.34.0/24", "", "::ffff:192.0.2.9", "--public-ipv6"},
	} {
		l, err := ParseReservation([]string{c.subnets}, c.public, c.public6)
		switch {
		case c.says == "" && (err != nil || Subnets(l) != c.subnets || PublicIPs(l) != join(c.public, c.public6)):
			t.Errorf("%s: %+v, %v", c.subnets, l, err)
		case c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)):
			t.Errorf("%s, %s%s: %v, want %q", c.subnets, c.public, c.public6, err, c.says)
		}
	}
}

// TestPrint: what somebody wrote to the store cannot change the terminal or the columns, and entries that are not used
// follow with their reasons.
func TestPrint(t *testing.T) {
	t.Parallel()
	entries := []etcd.Entry{
		{Key: "10.5.9.0-24", Lease: control.Lease{Subnet: netip.MustParsePrefix("10.5.9.0/24"), PublicIP: netip.MustParseAddr("192.0.2.1"), BackendType: "vx\x1b[2J",
			Backend: control.VTEPData{VNI: 7}}, TTL: time.Hour, State: etcd.EntryUsed, Alive: "yes", Node: "a"},
		{Key: "10.5.10.0-24", Lease: control.Lease{Subnet: netip.MustParsePrefix("10.5.10.0/24")}, Reserved: true, State: etcd.EntryReserved, Alive: "unknown"},
		{Key: "x\ty", Err: errors.New("read JSON"), Reserved: true, State: etcd.EntryUnreadable, Why: "it is\nno lease"},
	}
	var text strings.Builder
	if err := Print(&text, entries); err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(text.String()) {
		got = append(got, strings.Join(strings.Fields(line), " "))
	}
	want := []string{
		"SUBNET PUBLIC-IP BACKEND VNI VTEP-MAC EXPIRES-IN STATE ALIVE NODE",
		`10.5.9.0/24 192.0.2.1 vx\x1b[2J 7 00:00:00:00:00:00 1h0m0s used yes a`,
		"10.5.10.0/24 - - - - reserved reserved unknown -",
		"",
		"NOT USED STATE EXPIRES-IN REASON",
		`x\ty unreadable never it is\nno lease`,
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
