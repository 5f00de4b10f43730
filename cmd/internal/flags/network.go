package flags

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/overlayd/overlayd/cmd/internal/fit"
	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/dataplane/hostfile"
)

// networkFlags say which overlay networks this host joins, and where it writes its subnet of each.
type networkFlags struct {
	Names      []string // of the networks to serve
	Watch      bool     // serve networks as they come and go
	SubnetFile string
	SubnetDir  string
	ConfigPath string

	network         string
	workloadAddress bool
	configHold      time.Duration
	firstConfig     []byte // made by check: the config to write if the store has none; nil: none
	subnetFileGiven bool   // made by Complete
}

// The files that flannel's CNI plugin reads, and the directory that older flannels wrote several networks to.
const (
	DefaultSubnetFile = "/run/flannel/subnet.env"
	DefaultSubnetDir  = "/run/flannel/networks"
)

func (o *networkFlags) register(f *pflag.FlagSet) {
	f.StringVar(&o.network, "network", "", "overlay network such as 10.5.0.0/16 or fd10:5::/48, or both with a comma; written as the network config if etcd has none")
	f.StringVar(&o.ConfigPath, "net-config-path", "", "file with a network config in JSON: written if etcd has none; with --kube-subnet-mgr it is the config (default /etc/kube-flannel/net-conf.json)")
	f.StringVar(&o.SubnetFile, "subnet-file", DefaultSubnetFile, "file that tells a CNI plugin or Docker the subnet and MTU")
	f.BoolVar(&o.workloadAddress, "workload-address", false, "give the overlay device the first address of the subnet too, for programs in this network namespace")
	f.DurationVar(&o.configHold, "config-hold", 30*time.Second, "how long to wait before applying a network config that this node's subnet does not fit, because its pods lose their addresses then; 0: apply it at once")
	f.StringSliceVar(&o.Names, "networks", nil, "comma-separated names: serve these networks, each configured below <etcd-prefix>/<name>")
	f.BoolVar(&o.Watch, "watch-networks", false, "serve every network below the prefix, or those of --networks, as they come and go")
	f.StringVar(&o.SubnetDir, "subnet-dir", DefaultSubnetDir, "directory for <name>.env of each of several networks")
}

const maxConfigHold = 24 * time.Hour

// Several reports whether the daemon serves networks that have names.
func (o *networkFlags) Several() bool { return len(o.Names) > 0 || o.Watch }

// check checks the files that are to be written, and reads the first network config.
func (o *networkFlags) check(p *problems, kube bool) {
	if o.configHold < 0 || o.configHold > maxConfigHold {
		p.bad("config-hold", o.configHold.String(), "want 0 to 24h")
	}
	switch {
	case o.Several():
		o.checkNames(p)
	case o.SubnetFile == "":
		p.bad("subnet-file", "", "want a path")
	default:
		p.add(checkWritable("subnet-file", o.SubnetFile))
	}
	if !kube { // the file of Kubernetes mode may come later
		p.add(o.loadNetConfig())
	}
}

// checkNames checks the flags of several networks, each of which has its own subnet file and config.
func (o *networkFlags) checkNames(p *problems) {
	for i, name := range o.Names {
		o.Names[i] = strings.TrimSpace(name)
		if err := control.CheckNetworkName(o.Names[i]); err != nil {
			p.bad("networks", name, err.Error())
		}
	}
	if o.subnetFileGiven {
		p.add(errors.New("--subnet-file: several networks have a file each, in --subnet-dir"))
	}
	if o.SubnetDir == "" {
		p.bad("subnet-dir", "", "want a directory")
	}
	if info, err := os.Stat(o.SubnetDir); err == nil && !info.IsDir() {
		p.bad("subnet-dir", o.SubnetDir, "is not a directory")
	}
	if o.network != "" || o.ConfigPath != "" {
		p.add(errors.New("--network and --net-config-path: they do not say for which of several networks: put each config into etcd"))
	}
}

// loadNetConfig reads and checks what --network or --net-config-path would write.
func (o *networkFlags) loadNetConfig() error {
	switch {
	case o.network != "" && o.ConfigPath != "":
		return errors.New("--network and --net-config-path: give one of them")
	case o.network != "":
		text, err := networkJSON(o.network)
		if err != nil {
			return err
		}
		if err := checkConfig(text); err != nil {
			return fmt.Errorf("--network: %q: %w", o.network, err)
		}
		o.firstConfig = text
	case o.ConfigPath != "":
		b, err := hostfile.Read(o.ConfigPath)
		if err != nil {
			return fmt.Errorf("--net-config-path: %w", err)
		}
		if err := checkConfig(b); err != nil {
			return fmt.Errorf("--net-config-path: %s: %w", o.ConfigPath, err)
		}
		o.firstConfig = b
	}
	return nil
}

// checkConfig refuses a network config that no host can carry: whoever writes it would keep all hosts from becoming ready.
func checkConfig(text []byte) error {
	n, err := control.ParseNetwork(text)
	if err != nil {
		return err
	}
	_, err = fit.Anywhere(n)
	return err
}

// networkJSON is the network config for the value of --network.
func networkJSON(value string) ([]byte, error) {
	config := map[string]any{"Backend": map[string]string{"Type": "vxlan"}}
	for s := range strings.SplitSeq(value, ",") {
		p, err := netip.ParsePrefix(strings.TrimSpace(s))
		key := "Network"
		if err == nil && p.Addr().Is6() {
			key = "IPv6Network"
			config["EnableIPv6"] = true
		}
		if err != nil || config[key] != nil {
			return nil, fmt.Errorf("--network: %q: want a network such as 10.5.0.0/16 or fd00:5::/48, or one of each", value)
		}
		config[key] = p.Masked().String()
	}
	if config["Network"] == nil {
		config["EnableIPv4"] = false
	}
	return json.Marshal(config)
}
