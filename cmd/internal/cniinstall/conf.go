package cniinstall

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/overlayd/overlayd/cmd/internal/cni"
	"github.com/overlayd/overlayd/dataplane/hostfile"
)

// Conf is a config for a container runtime: a list of plugins.
type Conf struct {
	text []byte
	list *libcni.NetworkConfigList
}

// DefaultConf returns the config of kube-flannel.yml, with another plugin of flannel's kind, by its name. The name of the
// network is the same, so that host-local knows which addresses flannel's pods have. v is the version of CNI.
func DefaultConf(plugin, v, subnetFile string) (Conf, error) {
	if all := version.All.SupportedVersions(); !slices.Contains(all, v) {
		return Conf{}, fmt.Errorf("CNI version %q: want one of %s", v, strings.Join(all, ", "))
	}
	type object = map[string]any
	ours := object{"type": plugin, "delegate": object{"hairpinMode": true, "isDefaultGateway": true}}
	if subnetFile != cni.DefaultSubnetFile {
		ours["subnetFile"] = subnetFile
	}
	text, err := json.MarshalIndent(object{
		"name": "cbr0", "cniVersion": v,
		"plugins": []any{ours, object{"type": "portmap", "capabilities": object{"portMappings": true}}},
	}, "", "  ")
	if err != nil {
		return Conf{}, err
	}
	return newConf(append(text, '\n'), []string{plugin})
}

// ReadConf reads a config, in which plugins with one of these names are ours. It is installed as it is.
func ReadConf(path string, names []string) (Conf, error) {
	text, err := hostfile.Read(path)
	if err != nil {
		return Conf{}, err
	}
	c, err := newConf(text, names)
	if err != nil {
		return Conf{}, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

func newConf(text []byte, names []string) (Conf, error) {
	list, err := libcni.NetworkConfFromBytes(text)
	if err != nil {
		return Conf{}, err
	}
	if len(list.Plugins) == 0 {
		return Conf{}, errors.New(`"plugins" is missing: want a list of plugins`)
	}
	for _, p := range list.Plugins {
		if !slices.Contains(names, p.Network.Type) {
			continue
		}
		if err := cni.CheckConfig(p.Bytes); err != nil {
			return Conf{}, fmt.Errorf("plugin %s: %w", p.Network.Type, err)
		}
	}
	return Conf{text, list}, nil
}

// subnetFile is the one that a plugin with one of these names reads.
func (c Conf) subnetFile(names []string, otherwise string) string {
	for _, p := range c.list.Plugins {
		var own struct{ SubnetFile string }
		if slices.Contains(names, p.Network.Type) && json.Unmarshal(p.Bytes, &own) == nil && own.SubnetFile != "" {
			return own.SubnetFile
		}
	}
	return otherwise
}

// lacking returns the plugins of the config that are not in dir.
func (c Conf) lacking(dir string, names []string) (all []string) {
	for _, p := range c.list.Plugins {
		all = append(all, p.Network.Type)
		var own struct {
			Delegate, IPAM struct{ Type string }
		}
		if slices.Contains(names, p.Network.Type) && json.Unmarshal(p.Bytes, &own) == nil {
			all = append(all, cmp.Or(own.Delegate.Type, "bridge"), cmp.Or(own.IPAM.Type, "host-local"))
		}
	}
	return slices.DeleteFunc(all, func(name string) bool {
		_, err := os.Stat(filepath.Join(dir, name))
		return err == nil
	})
}
