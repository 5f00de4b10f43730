package etcd_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/etcd"
	"github.com/overlayd/overlayd/control/etcd/etcdtest"
)

// TestLeaderKilled has three members, each a process, and kills -9 the leader.
func TestLeaderKilled(t *testing.T) {
	t.Parallel()
	members := startMembers(t)
	client, err := clientv3.New(clientv3.Config{Endpoints: members.endpoints, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	c := &cluster{client: client, cfg: etcd.Config{Endpoints: members.endpoints, Prefix: prefix}}
	c.SetConfig(t, []byte(config))
	s := c.open(t)
	l := acquire(t, s, 1)
	updates := watch(t, s)
	tb := table{}
	follow(t, c, updates, tb)

	members.kill(t, client)
	eventually(t, "a put after the election", func() bool {
		_, err := client.Put(t.Context(), prefix+"/subnets/"+key(200), string(value(2)))
		return err == nil
	})
	follow(t, c, updates, tb)
	defer func() { t.Logf("last answer to Renew: %v", err) }()
	eventually(t, "a renewal", func() bool {
		var renewed control.Lease
		if renewed, err = s.Renew(t.Context(), l); err == nil {
			l = renewed
		}
		return err == nil
	})
	if e := c.entry(t, l.Key()); e.revision != l.CreateRevision {
		t.Error("the renewal wrote the entry again")
	}
}

// members is a cluster of three processes.
type members struct {
	endpoints []string
	processes []*exec.Cmd
}

func startMembers(tb testing.TB) members {
	tb.Helper()
	urls := freeURLs(tb, 6)
	m := members{endpoints: urls[3:]}
	all := etcdtest.Members{Dirs: []string{tb.TempDir(), tb.TempDir(), tb.TempDir()}, Peers: urls[:3], Clients: urls[3:]}
	for i := range 3 {
		cmd := all.Command(i)
		cmd.Stderr = os.Stderr
		if err := cmd.Start(); err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(func() {
			_ = cmd.Process.Kill() // one is dead already
			_ = cmd.Wait()
		})
		m.processes = append(m.processes, cmd)
	}
	return m
}

// kill waits until all members follow one leader, so that two are left, kills that
// leader, and returns when it is dead.
func (m members) kill(tb testing.TB, client *clientv3.Client) {
	tb.Helper()
	leader := -1
	eventually(tb, "three members with a leader", func() bool {
		known := 0
		for i, e := range m.endpoints {
			ctx, cancel := context.WithTimeout(tb.Context(), time.Second)
			st, err := client.Status(ctx, e)
			cancel()
			if err == nil && st.Leader != 0 {
				known++
			}
			if err == nil && st.Leader == st.Header.MemberId {
				leader = i
			}
		}
		return known == 3 && leader >= 0
	})
	if err := m.processes[leader].Process.Kill(); err != nil {
		tb.Fatal(err)
	}
	_ = m.processes[leader].Wait() // it says that it was killed
}

// freeURLs returns loopback URLs whose ports were free a moment ago.
func freeURLs(tb testing.TB, n int) (urls []string) {
	tb.Helper()
	// No connection has this address as its source, and so none takes a port of it meanwhile.
	host := fmt.Sprintf("127.%d.%d.%d", 1+rand.IntN(254), rand.IntN(256), 1+rand.IntN(254))
	for range n {
		l, err := net.Listen("tcp", host+":0")
		if err != nil {
			tb.Fatal(err)
		}
		defer l.Close()
		urls = append(urls, "http://"+l.Addr().String())
	}
	return urls
}
