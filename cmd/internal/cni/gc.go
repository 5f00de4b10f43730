package cni

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
)

// gc deletes every attachment of the network that the runtime has no more, and then lets the delegate do so, if it can: CNI
// plugins know GC since 1.1.0.
func (p plugin) gc(args *skel.CmdArgs) error {
	c, err := parse(args.StdinData)
	if err != nil {
		return err
	}
	if c.ValidAttachments, err = validAttachments(args.StdinData); err != nil {
		return err
	}
	list, err := store(c.DataDir).all(p.say)
	if err != nil {
		return err
	}
	by := plugins(args.Path)
	var errs []error
	for _, r := range list {
		if r.conf.text("name") != c.Name || r.isOneOf(c.ValidAttachments) {
			continue
		}
		if err := p.undo(by, r, r.del(by)); err != nil {
			errs = append(errs, fmt.Errorf("delete %s of container %s: %w", r.ifName(), r.container, err))
		}
	}
	errs = append(errs, p.pass(by, c, "GC"))
	if err := errors.Join(errs...); err != nil {
		return types.NewError(types.ErrInternal, err.Error(), "the runtime asks again")
	}
	return nil
}

const (
	validKey = "cni.dev/valid-attachments"
	olderKey = "cni.dev/attachments" // of the text of CNI 1.1.0; libcni gives both
)

// validAttachments returns what the runtime still has. If it does not say, it may have all: nothing is deleted then.
func validAttachments(config []byte) (list []types.GCAttachment, err error) {
	var o object
	if err := json.Unmarshal(config, &o); err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, "read the network config: "+err.Error(), "")
	}
	for _, key := range []string{validKey, olderKey} {
		raw, ok := o[key]
		if !ok {
			continue
		}
		if err := json.Unmarshal(raw, &list); err != nil { // null, which libcni gives if there are none, is a list
			return nil, invalid("%s: %v", key, err)
		}
		return list, nil
	}
	return nil, invalid("%s: it is missing: GC wants the list of the attachments that are left, which may be empty", validKey)
}

// isOneOf reports whether the runtime still has an attachment. A file of flannel's plugin does not say which one of its
// container it is of.
func (r *saved) isOneOf(valid []types.GCAttachment) bool {
	for _, a := range valid {
		if a.ContainerID == r.container && (r.made.IfName == "" || a.IfName == r.made.IfName) {
			return true
		}
	}
	return false
}

// ifName is the name of the interface, of a container of Kubernetes if the file does not tell.
func (r *saved) ifName() string {
	if r.made.IfName == "" {
		return "eth0"
	}
	return r.made.IfName
}

// del are the arguments of the DEL that the runtime has not sent. The namespace is named only if its path still leads to it.
func (r *saved) del(by plugins) *invoke.Args {
	a := &invoke.Args{Command: "DEL", ContainerID: r.container, IfName: r.ifName(), Path: string(by)}
	if r.made.Inode != 0 && inodeOf(r.made.Netns) == r.made.Inode {
		a.NetNS = r.made.Netns
	}
	return a
}

// pass hands a command on to the delegate, if that speaks CNI 1.1.0, and with it to host-local.
func (p plugin) pass(by plugins, c *config, command string) error {
	e, err := readEnv(c.SubnetFile)
	if err != nil {
		return nil // STATUS has said so; without a subnet nothing of the delegate's is in use
	}
	o, err := c.render(e)
	if err != nil {
		return err
	}
	ctx := context.Background()
	v, err := by.speak(ctx, o, c.CNIVersion)
	if err != nil || v != c.CNIVersion {
		return err
	}
	if command == "GC" {
		o.set(validKey, c.ValidAttachments)
		o.set(olderKey, c.ValidAttachments)
	}
	return by.run(ctx, o, &invoke.DelegateArgs{Command: command})
}
