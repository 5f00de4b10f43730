package cni

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/ns"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
)

// Main is the plugin, with what the environment and standard input say. It does not return if there is an error.
func Main(about string) {
	p := plugin{out: os.Stdout, notes: os.Stderr}
	skel.PluginMainFuncs(skel.CNIFuncs{Add: p.add, Del: p.del, Check: p.check, GC: p.gc, Status: p.status}, version.All, about)
}

// plugin is one run of it.
type plugin struct {
	out, notes io.Writer
}

// say writes what is not an error of this call.
func (p plugin) say(err error) { fmt.Fprintf(p.notes, "overlayd-cni: %v\n", err) }

func (p plugin) add(args *skel.CmdArgs) error {
	c, err := parse(args.StdinData)
	if err != nil {
		return err
	}
	if err := checkNetns(args); err != nil {
		return err
	}
	e, err := readEnv(c.SubnetFile)
	if err != nil {
		return err
	}
	o, err := c.render(e)
	if err != nil {
		return err
	}
	o.moves(e)
	ctx, by := context.Background(), plugins(args.Path)
	v, err := by.speak(ctx, o, c.CNIVersion)
	if err != nil {
		return err
	}
	o.set("cniVersion", v)
	made := attachment{IfName: args.IfName, Netns: args.Netns, Inode: inodeOf(args.Netns)}
	if err := store(c.DataDir).save(args.ContainerID, made, o); err != nil {
		return err
	}
	delete(o, ownKey)
	r, err := by.add(ctx, o)
	if err != nil {
		return err
	}
	return p.print(r, c.CNIVersion)
}

// print prints the result of a delegate in the version of the caller.
func (p plugin) print(r types.Result, v string) error {
	r, err := r.GetAsVersion(v)
	if err != nil {
		return types.NewError(types.ErrIncompatibleCNIVersion, fmt.Sprintf("the result has no form in CNI version %s: %v", v, err), "")
	}
	return r.PrintTo(p.out)
}

// checkNetns refuses the namespace of this process. skel does so too, but after the result is printed.
func checkNetns(args *skel.CmdArgs) error {
	if strings.EqualFold(args.NetnsOverride, "true") || args.NetnsOverride == "1" {
		return nil
	}
	own, err := ns.CheckNetNS(args.Netns)
	switch {
	case err != nil:
		return err
	case own:
		return types.NewError(types.ErrInvalidNetNS, fmt.Sprintf("CNI_NETNS %s is the network namespace of the host", args.Netns), "")
	}
	return nil
}

func (p plugin) del(args *skel.CmdArgs) error {
	c, err := parse(args.StdinData)
	if err != nil {
		return err
	}
	r, err := store(c.DataDir).load(args.ContainerID, args.IfName)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil // it was never made, or is deleted already
	case errors.Is(err, errDamaged):
		p.say(err)
		if r.conf, err = c.instead(r.path); err != nil {
			return err
		}
	case err != nil:
		return err
	}
	return p.undo(plugins(args.Path), r, &invoke.DelegateArgs{Command: "DEL"})
}

// instead returns the config that a damaged file most likely had: that of today.
func (c *config) instead(path string) (object, error) {
	e, err := readEnv(c.SubnetFile)
	if err != nil {
		return nil, types.NewError(types.ErrTryAgainLater, fmt.Sprintf("%s is damaged, and there is no other config to delete the interface by: %v", path, err),
			"start overlayd; if this host is to have none, remove the file")
	}
	return c.render(e)
}

// undo has the delegate delete what it made, in a version that it still speaks, and removes the file.
func (p plugin) undo(by plugins, r *saved, args invoke.CNIArgs) error {
	ctx := context.Background()
	v, err := by.speak(ctx, r.conf, r.conf.text("cniVersion"))
	if err != nil {
		return err
	}
	r.conf.set("cniVersion", v)
	delete(r.conf, ownKey)
	if err := by.run(ctx, r.conf, args); err != nil {
		return err
	}
	if err := os.Remove(r.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return types.NewError(types.ErrIOFailure, err.Error(), "")
	}
	return nil
}

func (p plugin) check(args *skel.CmdArgs) error {
	c, err := parse(args.StdinData)
	if err != nil {
		return err
	}
	if err := version.ParsePrevResult(&c.PluginConf); err != nil {
		return invalid("prevResult: %v", err)
	}
	if c.PrevResult == nil {
		return invalid("prevResult: it is missing: CHECK wants the result of ADD")
	}
	r, err := store(c.DataDir).load(args.ContainerID, args.IfName)
	if errors.Is(err, fs.ErrNotExist) {
		return types.NewError(types.ErrUnknownContainer, fmt.Sprintf("%s of container %s is unknown: %s has no config of it", args.IfName, args.ContainerID, c.DataDir), "make the pod again")
	}
	if err != nil {
		return err
	}
	ctx, by := context.Background(), plugins(args.Path)
	v, err := by.speak(ctx, r.conf, c.CNIVersion)
	if err != nil {
		return err
	}
	if old, err := version.GreaterThanOrEqualTo(v, "0.4.0"); err != nil || !old {
		return err // the delegate knows no CHECK
	}
	prev, err := c.prevResult(v)
	if err != nil {
		return invalid("prevResult: %v", err)
	}
	r.conf.set("cniVersion", v)
	r.conf.set("prevResult", prev)
	delete(r.conf, ownKey)
	return by.run(ctx, r.conf, &invoke.DelegateArgs{Command: "CHECK"})
}

// prevResult returns the result of the ADD in version v, with the gateway of each route. If that is left out, it is the
// address's, but Debian's bridge and ptp (1.1.1) look for a route without a gateway then.
func (c *config) prevResult(v string) (types.Result, error) {
	r, err := types100.NewResultFromResult(c.PrevResult)
	if err != nil {
		return nil, err
	}
	for _, route := range r.Routes {
		for _, a := range r.IPs {
			if route != nil && route.GW == nil && a != nil && (route.Dst.IP.To4() == nil) == (a.Gateway.To4() == nil) {
				route.GW = a.Gateway
			}
		}
	}
	return r.GetAsVersion(v)
}
