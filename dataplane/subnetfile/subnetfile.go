// Package subnetfile reads, writes and keeps subnet.env. This file tells the CNI plugin of this node, and the
// daemon's own next run, which subnet the node has.
package subnetfile

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/overlayd/overlayd/dataplane/hostfile"
)

// File is the content of subnet.env. The file does not exist while the node has lost its lease and
// has no other. A family without a valid Subnet has no lines.
type File struct {
	Network, Subnet         netip.Prefix // IPv4; Subnet is the lease's
	IPv6Network, IPv6Subnet netip.Prefix
	MTU                     int // of the overlay device
	IPMasq                  bool
}

// Text returns the file in flannel's keys, order and form (flannel v0.28.9
// pkg/subnet): FLANNEL_SUBNET is the address after the base one, which becomes the
// bridge's, with the length of the lease.
func (f File) Text() []byte {
	var b bytes.Buffer
	if f.Subnet.IsValid() {
		fmt.Fprintf(&b, "FLANNEL_NETWORK=%s\nFLANNEL_SUBNET=%s\n", f.Network, FirstHost(f.Subnet))
	}
	if f.IPv6Subnet.IsValid() {
		fmt.Fprintf(&b, "FLANNEL_IPV6_NETWORK=%s\nFLANNEL_IPV6_SUBNET=%s\n", f.IPv6Network, FirstHost(f.IPv6Subnet))
	}
	fmt.Fprintf(&b, "FLANNEL_MTU=%d\nFLANNEL_IPMASQ=%t\n", f.MTU, f.IPMasq)
	return b.Bytes()
}

// FirstHost returns the first usable address of p, with the length of p.
func FirstHost(p netip.Prefix) netip.Prefix {
	return netip.PrefixFrom(p.Addr().Next(), p.Bits())
}

// Write makes path hold f: a reader sees the old file or the new one and
// nothing between, even after a power cut. It makes missing folders (0755), gives
// the file mode 0644, and writes nothing if the content is that already. What is no file, such as a FIFO, makes room for it.
func Write(path string, f File) error {
	text := f.Text()
	if old, err := hostfile.Read(path); err == nil && bytes.Equal(old, text) {
		return nil
	}
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("write subnet file %s: %w", path, err)
	}
	tmp, err := os.CreateTemp(dir, "."+filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("write subnet file %s: %w", path, hostfile.Cause(err))
	}
	defer os.Remove(tmp.Name()) // fails once it is renamed
	_, err = tmp.Write(text)
	err = errors.Join(err, tmp.Chmod(0o644), tmp.Sync(), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err == nil {
		err = syncDir(dir)
	}
	if err != nil {
		// Without the random name, which would make every try another error.
		return fmt.Errorf("write subnet file %s: %w", path, hostfile.Cause(err))
	}
	return nil
}

// Remove removes the file at path. A missing file is not an error.
func Remove(path string) error {
	err := os.Remove(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err == nil:
		err = syncDir(filepath.Dir(path))
	}
	if err != nil {
		return fmt.Errorf("remove subnet file: %w", err)
	}
	return nil
}

// syncDir makes a change in dir survive a power cut.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Read returns the subnets that path names, masked, for control.Node.Previous.
// As with flannel a missing file, a line that is not an assignment or no subnet, and a
// list of several subnets give none. An error means that the file is there and
// cannot be read; the caller can go on without it.
func Read(path string) ([]netip.Prefix, error) {
	f, err := Load(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return f.Subnets(), err
}

// Load returns what path says, the subnets and networks masked. What it does not say, or not as flannel does, is zero. A
// missing file is fs.ErrNotExist.
func Load(path string) (File, error) {
	text, err := read(path)
	if err != nil {
		return File{}, err
	}
	return parse(text), nil
}

// Values returns what path says, unchecked: FLANNEL_SUBNET and so on. A missing file is fs.ErrNotExist.
func Values(path string) (map[string]string, error) {
	text, err := read(path)
	if err != nil {
		return nil, err
	}
	values := map[string]string{}
	for key, value := range assignments(text) {
		values[key] = value
	}
	return values, nil
}

func read(path string) ([]byte, error) {
	text, err := hostfile.Read(path)
	if err != nil {
		return nil, fmt.Errorf("read subnet file: %w", err)
	}
	return text, nil
}

// Subnets returns those of both families, IPv4 first.
func (f File) Subnets() []netip.Prefix { return both(f.Subnet, f.IPv6Subnet) }

// Networks returns those of both families, IPv4 first.
func (f File) Networks() []netip.Prefix { return both(f.Network, f.IPv6Network) }

func both(v4, v6 netip.Prefix) (list []netip.Prefix) {
	for _, p := range []netip.Prefix{v4, v6} {
		if p.IsValid() {
			list = append(list, p)
		}
	}
	return list
}

// assignments are those of a text as a shell reads them; the last one of a key counts.
func assignments(text []byte) iter.Seq2[string, string] {
	return func(yield func(key, value string) bool) {
		for s := bufio.NewScanner(bytes.NewReader(text)); s.Scan(); {
			key, value, ok := strings.Cut(strings.TrimPrefix(strings.TrimSpace(s.Text()), "export "), "=")
			if !ok {
				continue
			}
			value, _, _ = strings.Cut(value, " #")
			if !yield(strings.TrimSpace(key), strings.Trim(strings.TrimSpace(value), `"'`)) {
				return
			}
		}
	}
}

// parse reads what flanneld or overlayd has written.
func parse(text []byte) (f File) {
	for key, value := range assignments(text) {
		v4, v6 := prefixIn(value)
		switch key {
		case "FLANNEL_NETWORK":
			f.Network = v4
		case "FLANNEL_SUBNET":
			f.Subnet = v4
		case "FLANNEL_IPV6_NETWORK":
			f.IPv6Network = v6
		case "FLANNEL_IPV6_SUBNET":
			f.IPv6Subnet = v6
		case "FLANNEL_MTU":
			f.MTU, _ = strconv.Atoi(value)
		case "FLANNEL_IPMASQ":
			f.IPMasq = value == "true"
		}
	}
	return f
}

// prefixIn returns a prefix as that of its family, masked.
func prefixIn(text string) (v4, v6 netip.Prefix) {
	p, err := netip.ParsePrefix(text)
	switch {
	case err != nil || p.Addr().Is4In6():
	case p.Addr().Is4():
		v4 = p.Masked()
	default:
		v6 = p.Masked()
	}
	return v4, v6
}
