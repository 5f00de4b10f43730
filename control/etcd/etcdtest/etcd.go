package etcdtest

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
)

// hang is how long an etcd may take for what must happen. It is not a measure: the machine may be busy.
const hang = time.Minute

// Etcd is one that runs, to which a test does harm.
type Etcd struct {
	Members
	Prefix string                   // of the keys that the user of Allow may use
	In     func(func() error) error // calls a function where processes and connections belong; nil: calls it
	Client *clientv3.Client         // of nobody, or of root if there are users

	Connected func(*clientv3.Client) // is told each other Client, if it is not nil

	cmds []*exec.Cmd // nil: it does not run
	root bool        // there are users
}

// Run starts the members that do not run, and returns when etcd answers. They end with the test.
func (e *Etcd) Run(t *testing.T) {
	t.Helper()
	if e.cmds == nil {
		e.cmds = make([]*exec.Cmd, len(e.Dirs))
		t.Cleanup(e.Kill)
	}
	for i, cmd := range e.cmds {
		if cmd != nil {
			continue
		}
		cmd = e.Command(i)
		if err := e.in(cmd.Start); err != nil {
			t.Fatal(err)
		}
		e.cmds[i] = cmd
	}
	e.reconnect(t)
}

func (e *Etcd) in(f func() error) error {
	if e.In == nil {
		return f()
	}
	return e.In(f)
}

// reconnect makes the client another one, which has no token, when etcd answers.
func (e *Etcd) reconnect(t *testing.T) {
	t.Helper()
	user := ""
	if e.root {
		user = "root"
	}
	e.Client = e.Connect(t, user)
	if e.Connected != nil {
		e.Connected(e.Client)
	}
	eventually(t, "an answer of etcd", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := e.Client.Get(ctx, e.Prefix+"/config")
		return err == nil
	})
}

// Connect returns a client of a user, whose password is the name; "": of nobody.
func (e *Etcd) Connect(t *testing.T, user string) (c *clientv3.Client) {
	t.Helper()
	dial := grpc.WithContextDialer(func(ctx context.Context, addr string) (conn net.Conn, err error) {
		err = e.in(func() error { conn, err = new(net.Dialer).DialContext(ctx, "tcp", addr); return err })
		return conn, err
	})
	eventually(t, "a client", func() bool {
		var err error
		c, err = clientv3.New(clientv3.Config{Endpoints: e.Clients, Username: user, Password: user, DialTimeout: 2 * time.Second,
			Logger: zap.NewNop(), DialOptions: []grpc.DialOption{dial}})
		return err == nil
	})
	t.Cleanup(func() { c.Close() })
	return c
}

// Kill kills the members, which makes them forget all tokens.
func (e *Etcd) Kill() {
	for i := range e.cmds {
		e.kill(i)
	}
}

func (e *Etcd) kill(i int) {
	if e.cmds[i] != nil {
		_ = e.cmds[i].Process.Kill() // it may be dead
		_ = e.cmds[i].Wait()         // it says that it was killed
	}
	e.cmds[i] = nil
}

// KillLeader kills the member that leads the others.
func (e *Etcd) KillLeader(t *testing.T) {
	t.Helper()
	eventually(t, "the leader is dead", func() bool {
		for i, url := range e.Clients {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			st, err := e.Client.Status(ctx, url)
			cancel()
			if err == nil && st.Leader == st.Header.MemberId && e.cmds[i] != nil {
				e.kill(i)
				return true
			}
		}
		return false
	})
}

// Restart kills all members and runs them. Meanwhile the data may be changed.
func (e *Etcd) Restart(t *testing.T, meanwhile ...func()) {
	t.Helper()
	e.Kill()
	for _, f := range meanwhile {
		f()
	}
	e.Run(t)
}

// Wipe runs an etcd without data instead of this one.
func (e *Etcd) Wipe(t *testing.T) {
	t.Helper()
	e.root = false
	e.Restart(t, func() { e.replaceData(t, "") })
}

// Restore runs it with the data that Snapshot returned.
func (e *Etcd) Restore(t *testing.T, snapshot string) {
	t.Helper()
	e.Restart(t, func() { e.replaceData(t, snapshot) })
}

// replaceData makes the data of each member what a directory has; "": empty.
func (e *Etcd) replaceData(t *testing.T, from string) {
	t.Helper()
	for i, dir := range e.Dirs {
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

// Snapshot restarts etcd, and returns a directory with the data of each member meanwhile.
func (e *Etcd) Snapshot(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	e.Restart(t, func() {
		for i, data := range e.Dirs {
			if err := os.CopyFS(fmt.Sprintf("%s/%d", dir, i), os.DirFS(data)); err != nil {
				t.Fatal(err)
			}
		}
	})
	return dir
}

// eventually polls until ok, or fails.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(hang); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", hang, what)
		}
	}
}
