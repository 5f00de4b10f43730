package etcd_test

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// process is an etcd of one or more processes, with a proxy in front of each member.
type process struct {
	*cluster
	path    string // of an etcd of another version; "": this module's, which is this binary
	urls    []string
	dirs    []string
	cmds    []*exec.Cmd // nil: it does not run
	proxies []*proxy
	root    bool // the client is that user
}

// newProcess starts an etcd with so many members.
func newProcess(t *testing.T, path string, members int) *process {
	t.Helper()
	p := &process{cluster: &cluster{}, path: path, urls: freeURLs(t, 2*members), cmds: make([]*exec.Cmd, members)}
	p.cfg.Prefix = prefix
	for i := range members {
		p.dirs = append(p.dirs, t.TempDir())
		u, err := url.Parse(p.urls[members+i])
		if err != nil {
			t.Fatal(err)
		}
		p.proxies = append(p.proxies, newProxy(t, u.Host))
		p.cfg.Endpoints = append(p.cfg.Endpoints, "http://"+p.proxies[i].addr())
	}
	t.Cleanup(p.kill)
	p.run(t)
	return p
}

// run starts the members that do not run, and returns when etcd answers.
func (p *process) run(t *testing.T) {
	t.Helper()
	for i, cmd := range p.cmds {
		if cmd != nil {
			continue
		}
		p.cmds[i] = p.command(i)
		if err := p.cmds[i].Start(); err != nil {
			t.Fatal(err)
		}
	}
	p.reconnect(t)
}

func (p *process) command(i int) *exec.Cmd {
	n := len(p.cmds)
	if p.path == "" {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d %s %s", memberEnv, i, p.dirs[i], strings.Join(p.urls, " ")))
		return cmd
	}
	var initial []string
	for j := range n {
		initial = append(initial, fmt.Sprintf("m%d=%s", j, p.urls[j]))
	}
	return exec.Command(p.path, "--name", fmt.Sprint("m", i), "--data-dir", p.dirs[i], "--log-level", "error", "--unsafe-no-fsync",
		"--listen-client-urls", p.urls[n+i], "--advertise-client-urls", p.urls[n+i], "--listen-peer-urls", p.urls[i],
		"--initial-advertise-peer-urls", p.urls[i], "--initial-cluster", strings.Join(initial, ","))
}

// reconnect makes the client another one, which has no token, when etcd answers.
func (p *process) reconnect(t *testing.T) {
	t.Helper()
	user := ""
	if p.root {
		user = "root"
	}
	p.client = p.connect(t, user)
	eventually(t, "an answer of etcd", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := p.client.Get(ctx, prefix+"/config")
		return err == nil
	})
}

// connect returns a client of a user, past the proxies.
func (p *process) connect(t *testing.T, user string) (c *clientv3.Client) {
	t.Helper()
	eventually(t, "a client", func() bool {
		var err error
		c, err = clientv3.New(clientv3.Config{Endpoints: p.urls[len(p.cmds):], Username: user, Password: user, DialTimeout: 2 * time.Second, Logger: zap.NewNop()})
		return err == nil
	})
	t.Cleanup(func() { c.Close() })
	return c
}

func (p *process) kill() {
	for i, cmd := range p.cmds {
		if cmd != nil {
			_ = cmd.Process.Kill() // it may be dead
			_ = cmd.Wait()
		}
		p.cmds[i] = nil
	}
}

// restart kills it, which makes it forget all tokens. Meanwhile its data may be changed.
func (p *process) restart(t *testing.T, meanwhile ...func()) {
	t.Helper()
	p.kill()
	for _, f := range meanwhile {
		f()
	}
	p.run(t)
}

// replaceData makes the data of each member what a directory has; "": empty.
func (p *process) replaceData(t *testing.T, from string) {
	t.Helper()
	for i, dir := range p.dirs {
		err := os.RemoveAll(dir)
		if err == nil {
			err = os.Mkdir(dir, 0o700)
		}
		if err == nil && from != "" {
			err = os.CopyFS(dir, os.DirFS(fmt.Sprintf("%s/%d", from, i)))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// snapshot restarts etcd, and returns a directory with the data of each member meanwhile.
func (p *process) snapshot(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	p.restart(t, func() {
		for i, data := range p.dirs {
			if err := os.CopyFS(fmt.Sprintf("%s/%d", dir, i), os.DirFS(data)); err != nil {
				t.Fatal(err)
			}
		}
	})
	return dir
}

// allow sets up a user of the Stores, and returns what gives and takes its right to write.
func (p *process) allow(t *testing.T) (write func(may bool)) {
	t.Helper()
	ctx, end := t.Context(), clientv3.GetPrefixRangeEnd(prefix)
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(p.client.UserAdd(ctx, "root", "root"))
	must(p.client.RoleAdd(ctx, "root"))
	must(p.client.UserGrantRole(ctx, "root", "root"))
	must(p.client.RoleAdd(ctx, "overlayd"))
	must(p.client.RoleGrantPermission(ctx, "overlayd", prefix, end, clientv3.PermissionType(clientv3.PermReadWrite)))
	must(p.client.UserAdd(ctx, "u", "u"))
	must(p.client.UserGrantRole(ctx, "u", "overlayd"))
	must(p.client.AuthEnable(ctx))
	p.cfg.Username, p.cfg.Password, p.root = "u", "u", true
	p.reconnect(t)
	return func(may bool) {
		t.Helper()
		right := clientv3.PermissionType(clientv3.PermRead)
		if may {
			right = clientv3.PermissionType(clientv3.PermReadWrite)
		}
		must(p.connect(t, "root").RoleGrantPermission(t.Context(), "overlayd", prefix, end, right))
	}
}
