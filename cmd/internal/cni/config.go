package cni

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
)

const (
	// DefaultSubnetFile is read if the config has no "subnetFile".
	DefaultSubnetFile = "/run/flannel/subnet.env"
	// DefaultDataDir is where configs of delegates are saved if the config has no "dataDir".
	DefaultDataDir = "/var/lib/cni/flannel"

	defaultDelegate = "bridge"
	defaultIPAM     = "host-local"
	oldestVersion   = "0.1.0" // of a config that names none
)

// object is JSON whose values keep the form in which they came.
type object map[string]json.RawMessage

// config is the config of a network, with the keys of flannel's plugin.
type config struct {
	types.PluginConf

	IPAM          object          `json:"ipam"` // takes the place of PluginConf's, which has but the type
	SubnetFile    string          `json:"subnetFile"`
	DataDir       string          `json:"dataDir"`
	Delegate      object          `json:"delegate"`
	RuntimeConfig json.RawMessage `json:"runtimeConfig"`
}

// CheckConfig refuses a config with which the plugin would make no pod. What it says of the delegate is not checked.
func CheckConfig(text []byte) error {
	_, err := parse(text)
	return err
}

// parse reads a config. What it says of the delegate is checked when that is needed (render): a mistake there must not keep
// pods from being deleted.
func parse(text []byte) (*config, error) {
	c := &config{SubnetFile: DefaultSubnetFile, DataDir: DefaultDataDir}
	if err := json.Unmarshal(text, c); err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, "read the network config: "+err.Error(), "")
	}
	if c.CNIVersion == "" {
		c.CNIVersion = oldestVersion
	}
	for _, f := range []struct{ key, path string }{{"subnetFile", c.SubnetFile}, {"dataDir", c.DataDir}} {
		if !filepath.IsAbs(f.path) {
			return nil, invalid("%s: %q: want an absolute path", f.key, f.path)
		}
	}
	return c, nil
}

// checkDelegate checks which plugins are to do the work, and that the config leaves to this plugin what it sets.
func (c *config) checkDelegate() error {
	for _, f := range []struct{ key, from string }{{"name", "the name of the network"}, {"ipam", "the key ipam of the network"}} {
		if _, ok := c.Delegate[f.key]; ok {
			return invalid("delegate.%s: leave it out: the delegate gets %s", f.key, f.from)
		}
	}
	delegate, err := pluginOf("delegate.type", c.Delegate, defaultDelegate)
	if err != nil {
		return err
	}
	if delegate == c.Type {
		return invalid("delegate.type: %q is this plugin itself: want another, such as bridge or ptp", delegate)
	}
	_, err = pluginOf("ipam.type", c.IPAM, defaultIPAM)
	return err
}

// pluginOf returns the plugin that an object names by its type.
func pluginOf(key string, o object, without string) (name string, err error) {
	raw, ok := o["type"]
	if !ok {
		return without, nil
	}
	if json.Unmarshal(raw, &name) != nil || name == "" || strings.Contains(name, "/") || name == "." || name == ".." {
		return "", invalid("%s: %.100s: want the name of a plugin, such as %q", key, raw, without)
	}
	return name, nil
}

// invalid is the error of a network config.
func invalid(format string, args ...any) *types.Error {
	return types.NewError(types.ErrInvalidNetworkConfig, fmt.Sprintf(format, args...), "")
}
