package cni

import (
	"context"
	"errors"
	"path/filepath"
	"slices"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
	"golang.org/x/sync/errgroup"
)

// plugins are the directories with plugins: CNI_PATH.
type plugins string

// find returns the path of a plugin.
func (p plugins) find(name string) (string, error) {
	path, err := invoke.FindInPath(name, filepath.SplitList(string(p)))
	if err != nil {
		return "", types.NewError(types.ErrInvalidNetworkConfig, err.Error(), "install the plugins of containernetworking (Debian: containernetworking-plugins) where the container runtime looks for plugins")
	}
	return path, nil
}

// speak returns the newest CNI version that is not above newest, and that the delegate and the plugin which chooses
// addresses for it both list: the delegate gives its config to that. Debian's are of 1.0.0.
func (p plugins) speak(ctx context.Context, o object, newest string) (string, error) {
	var ipam object
	_ = decode(o["ipam"], &ipam) // render and load have checked it
	names := []string{o.text("type"), ipam.text("type")}
	if names[1] == "" {
		names = names[:1]
	}
	lists := make([][]string, len(names))
	var g errgroup.Group
	for i, name := range names {
		g.Go(func() (err error) { lists[i], err = p.versions(ctx, name); return err })
	}
	if err := g.Wait(); err != nil {
		return "", err
	}
	ours := version.All.SupportedVersions() // the oldest first
	if i := slices.Index(ours, newest); i >= 0 {
		ours = ours[:i+1]
	}
	for _, v := range slices.Backward(ours) {
		if !slices.ContainsFunc(lists, func(list []string) bool { return !slices.Contains(list, v) }) {
			return v, nil
		}
	}
	return "", types.NewError(types.ErrIncompatibleCNIVersion, "the plugins "+names[0]+" and "+names[len(names)-1]+" have no CNI version in common that is not above "+newest, "")
}

// versions returns what a plugin lists.
func (p plugins) versions(ctx context.Context, name string) ([]string, error) {
	path, err := p.find(name)
	if err != nil {
		return nil, err
	}
	info, err := invoke.GetVersionInfo(ctx, path, nil)
	if err != nil {
		return nil, blame(name, err)
	}
	return info.SupportedVersions(), nil
}

// add has the delegate make an attachment.
func (p plugins) add(ctx context.Context, o object) (types.Result, error) {
	name := o.text("type")
	path, err := p.find(name)
	if err != nil {
		return nil, err
	}
	r, err := invoke.ExecPluginWithResult(ctx, path, encode(o), &invoke.DelegateArgs{Command: "ADD"}, nil)
	return r, blame(name, err)
}

// run runs the delegate for a command that has no result.
func (p plugins) run(ctx context.Context, o object, args invoke.CNIArgs) error {
	name := o.text("type")
	path, err := p.find(name)
	if err != nil {
		return err
	}
	return blame(name, invoke.ExecPluginWithoutResult(ctx, path, encode(o), args, nil))
}

// blame says which plugin has failed. The code stays.
func blame(name string, err error) error {
	if err == nil {
		return nil
	}
	if e := new(types.Error); errors.As(err, &e) {
		return types.NewError(e.Code, "plugin "+name+": "+e.Msg, e.Details)
	}
	return types.NewError(types.ErrInternal, "plugin "+name+": "+err.Error(), "")
}
