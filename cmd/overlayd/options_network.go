package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/etcd"
)

// networkOptions say which overlay networks this host joins, and where it writes what
// it has of each.
type networkOptions struct {
	network         string
	netConfigPath   string
	networks        []string
	watchNetworks   bool
	subnetFile      string
	subnetDir       string
	workloadAddress bool

	netConfig       []byte // made by check: config to write where the store has none; nil: none
	subnetFileGiven bool   // made by complete
}

// Where flannel's CNI plugin looks, and where older flannels wrote several networks.
const (
	defaultSubnetFile = "/run/flannel/subnet.env"
	defaultSubnetDir  = "/run/flannel/networks"
)

func (o *networkOptions) register(f *pflag.FlagSet) {
	f.StringVar(&o.network, "network", "", "overlay network such as 10.5.0.0/16, or one of IPv6, or both with a comma: written as the network config if etcd has none")
	f.StringVar(&o.netConfigPath, "net-config-path", "", "file with a network config in JSON: written if etcd has none; with --kube-subnet-mgr it is the config (default /etc/kube-flannel/net-conf.json)")
	f.StringVar(&o.subnetFile, "subnet-file", defaultSubnetFile, "file that tells a CNI plugin or Docker the subnet and MTU")
	f.BoolVar(&o.workloadAddress, "workload-address", false, "give the overlay device the subnet's first address too, for what shares this network namespace")
	f.StringSliceVar(&o.networks, "networks", nil, "comma-separated names: serve these networks, each configured below <etcd-prefix>/<name>")
	f.BoolVar(&o.watchNetworks, "watch-networks", false, "serve every network below the prefix, or those of --networks, as they come and go")
	f.StringVar(&o.subnetDir, "subnet-dir", defaultSubnetDir, "directory for <name>.env of each of several networks")
}

// several reports whether the daemon serves networks that have names.
func (o *networkOptions) several() bool { return len(o.networks) > 0 || o.watchNetworks }

// subnetFileOf is the subnet file of a network; "" is the only one.
func (o *networkOptions) subnetFileOf(network string) string {
	if network == "" {
		return o.subnetFile
	}
	return filepath.Join(o.subnetDir, network+".env")
}

func (o *networkOptions) check(p *problems, kube bool) {
	switch {
	case o.several():
		o.checkNames(p)
	case o.subnetFile == "":
		p.bad("subnet-file", "", "want a path")
	default:
		p.add(checkWritable("subnet-file", o.subnetFile))
	}
	if !kube { // the file of Kubernetes mode may come later
		p.add(o.loadNetConfig())
	}
}

func (o *networkOptions) checkNames(p *problems) {
	for i, name := range o.networks {
		o.networks[i] = strings.TrimSpace(name)
		if err := etcd.CheckNetworkName(o.networks[i]); err != nil {
			p.bad("networks", name, err.Error())
		}
	}
	if o.subnetFileGiven {
		p.add(errors.New("--subnet-file: several networks have a file each, in --subnet-dir"))
	}
	if o.subnetDir == "" {
		p.bad("subnet-dir", "", "want a directory")
	}
	if info, err := os.Stat(o.subnetDir); err == nil && !info.IsDir() {
		p.bad("subnet-dir", o.subnetDir, "is not a directory")
	}
	if o.network != "" || o.netConfigPath != "" {
		p.add(errors.New("--network and --net-config-path: do not say for which of several networks: put each config into etcd"))
	}
}

// loadNetConfig reads and checks what --network or --net-config-path would write.
func (o *networkOptions) loadNetConfig() error {
	switch {
	case o.network != "" && o.netConfigPath != "":
		return errors.New("--network and --net-config-path: give one of them")
	case o.network != "":
		text, err := networkJSON(o.network)
		if err != nil {
			return err
		}
		if _, err := control.ParseNetwork(text); err != nil {
			return fmt.Errorf("--network: %q: %w", o.network, err)
		}
		o.netConfig = text
	case o.netConfigPath != "":
		b, err := os.ReadFile(o.netConfigPath)
		if err != nil {
			return fmt.Errorf("--net-config-path: %w", err)
		}
		if _, err := control.ParseNetwork(b); err != nil {
			return fmt.Errorf("--net-config-path: %s: %w", o.netConfigPath, err)
		}
		o.netConfig = b
	}
	return nil
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
