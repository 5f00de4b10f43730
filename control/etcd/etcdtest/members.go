// Package etcdtest runs etcd for tests, in processes that a test can kill: this module's own server, or another version's program.
package etcdtest

import (
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

// Members are the processes of one etcd. The lists are as long as it has members.
type Members struct {
	Path    string   // of etcd; "": the test binary is it, whose TestMain calls Main
	Dirs    []string // with the data of each
	Peers   []string // URL of each for the others
	Clients []string // URL of each for clients
}

// env makes a test binary be one member; its value is a member in JSON.
const env = "OVERLAYD_TEST_ETCD_MEMBER"

type member struct {
	Members
	Self int
}

// Command returns the command that runs a member. It says nothing but errors.
func (m Members) Command(self int) *exec.Cmd {
	if m.Path == "" {
		text, err := json.Marshal(member{m, self})
		if err != nil {
			panic(err) // strings can be written
		}
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), env+"="+string(text))
		return cmd
	}
	return exec.Command(m.Path, "--name", name(self), "--data-dir", m.data(self), "--log-level", "error", "--unsafe-no-fsync",
		"--listen-client-urls", m.Clients[self], "--advertise-client-urls", m.Clients[self], "--listen-peer-urls", m.Peers[self],
		"--initial-advertise-peer-urls", m.Peers[self], "--initial-cluster", m.initial())
}

func name(i int) string { return fmt.Sprint("m", i) }

func (m Members) data(i int) string { return filepath.Join(m.Dirs[i], "data") }

// initial names all members, as --initial-cluster does.
func (m Members) initial() string {
	var all []string
	for i, u := range m.Peers {
		all = append(all, name(i)+"="+u)
	}
	return strings.Join(all, ",")
}

// Main is the process of a member, if Command started this one, and then does not return before that ends.
func Main() {
	text := os.Getenv(env)
	if text == "" {
		return
	}
	var m member
	err := json.Unmarshal([]byte(text), &m)
	if err == nil {
		err = m.run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// run runs a member until somebody kills it.
func (m member) run() error {
	listen := func(text string) ([]url.URL, error) {
		u, err := url.Parse(text)
		if err != nil {
			return nil, err
		}
		return []url.URL{*u}, nil
	}
	peers, err := listen(m.Peers[m.Self])
	if err != nil {
		return err
	}
	clients, err := listen(m.Clients[m.Self])
	if err != nil {
		return err
	}
	cfg := embed.NewConfig()
	cfg.Name, cfg.Dir, cfg.InitialCluster, cfg.UnsafeNoFsync = name(m.Self), m.data(m.Self), m.initial(), true
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = peers, peers
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = clients, clients
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		return err
	}
	select {
	case err := <-e.Err():
		return err
	case <-time.After(time.Hour): // whoever was to kill it is dead
		return nil
	}
}
