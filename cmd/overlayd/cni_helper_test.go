package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	"github.com/vishvananda/netlink"

	"github.com/overlayd/overlayd/dataplane/netnstest"
)

// cniDir is where Debian's containernetworking-plugins has its plugins.
const cniDir = "/usr/lib/cni"

// cniConfig is what flannel's CNI plugin v1.7 gives to the bridge plugin: of subnet.env the
// values, of kube-flannel.yml's cni-conf.json hairpinMode and isDefaultGateway. dataDir is
// where host-local has its records.
func cniConfig(subnetFile, dataDir string) ([]byte, error) {
	env, err := readEnv(subnetFile)
	if err != nil {
		return nil, err
	}
	type subnet struct {
		Subnet string `json:"subnet"`
	}
	type route struct {
		Dst string `json:"dst"`
	}
	var ranges [][]subnet
	var routes []route
	for _, f := range []string{"FLANNEL_", "FLANNEL_IPV6_"} {
		if env[f+"SUBNET"] == "" {
			continue
		}
		p, err := netip.ParsePrefix(env[f+"SUBNET"])
		if err != nil {
			return nil, err
		}
		ranges = append(ranges, []subnet{{p.Masked().String()}})
		routes = append(routes, route{env[f+"NETWORK"]})
	}
	mtu, err := strconv.Atoi(env["FLANNEL_MTU"])
	if err != nil {
		return nil, err
	}
	masq, err := strconv.ParseBool(env["FLANNEL_IPMASQ"])
	if err != nil {
		return nil, err
	}
	return json.Marshal(map[string]any{
		"cniVersion": "0.3.1", "name": "cbr0", "type": "bridge",
		"hairpinMode": true, "isDefaultGateway": true, "isGateway": true, "ipMasq": !masq, "mtu": mtu,
		"ipam": map[string]any{"type": "host-local", "dataDir": dataDir, "ranges": ranges, "routes": routes},
	})
}

// cni runs the bridge plugin on the host for a pod's namespace.
func (h *host) cni(command string, ns *netnstest.NS) ([]byte, error) {
	config, err := cniConfig(h.subnetFile, filepath.Join(filepath.Dir(h.subnetFile), "cni"))
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(filepath.Join(cniDir, "bridge"))
	cmd.Stdin = bytes.NewReader(config)
	cmd.Env = append(h.c.env(), "CNI_COMMAND="+command, "CNI_PATH="+cniDir, "CNI_IFNAME=eth0",
		fmt.Sprintf("CNI_CONTAINERID=pod%d", ns.Handle()), fmt.Sprintf("CNI_NETNS=/proc/%d/fd/%d", os.Getpid(), ns.Handle()))
	var out []byte
	err = h.Do(func() (err error) { out, err = cmd.Output(); return err })
	if err != nil {
		return nil, fmt.Errorf("CNI %s: %w: %s", command, err, out)
	}
	return out, nil
}

// cniPod makes a pod as a container runtime does, with the addresses that the plugins give it.
func (h *host) cniPod() *pod {
	h.c.t.Helper()
	p := &pod{NS: netnstest.New(h.c.t)}
	out, err := h.cni("ADD", p.NS)
	if err != nil {
		h.c.t.Fatal(err)
	}
	var result struct {
		IPs []struct{ Address netip.Prefix }
	}
	if err := json.Unmarshal(out, &result); err != nil {
		h.c.t.Fatalf("CNI result %s: %v", out, err)
	}
	for i, gw := range h.gateways() {
		if len(result.IPs) <= i || !gw.Masked().Contains(result.IPs[i].Address.Addr()) {
			h.c.t.Fatalf("the pod has %v, want an address in %s", result.IPs, gw.Masked())
		}
		p.addrs = append(p.addrs, result.IPs[i].Address.Addr())
	}
	p.addr = p.addrs[0]
	p.Must(func() error {
		l, err := netlink.LinkByName("eth0")
		if err == nil && strconv.Itoa(l.Attrs().MTU) != h.env("FLANNEL_MTU") {
			err = fmt.Errorf("the pod's MTU is %d", l.Attrs().MTU)
		}
		return err
	})
	return p
}
