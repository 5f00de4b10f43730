package main

import (
	"bytes"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/overlayd/overlayd/cmd/internal/admin"
	"github.com/overlayd/overlayd/cmd/internal/status"
	"github.com/overlayd/overlayd/control/controller"
)

// TestNamesOfOthersAreNoCommands: bash puts what two completions begin with into the command line as it is, and runs $(...) in
// that at the next TAB. Names are whatever the store says.
func TestNamesOfOthersAreNoCommands(t *testing.T) {
	dir, err := os.MkdirTemp("", "c")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "subnet.env")
	var peers []status.Peer
	for _, name := range []string{"host-b", "host-c$(id>x)1", "host-c$(id>x)2", "a b", "x`id`", "y;id", "-c"} {
		peers = append(peers, status.Peer{PeerStatus: controller.PeerStatus{Name: name, Subnet: netip.MustParsePrefix("10.5.1.0/24")}})
	}
	s := admin.Start(t.Context(), admin.Config{Path: admin.Path(file), Group: -1, Log: slog.New(slog.DiscardHandler), Routes: []admin.Route{
		{Pattern: "GET /v1/peers", Handler: admin.JSON(func(*http.Request) any {
			return status.PeerList{V: status.Version, Networks: []status.NetworkPeers{{Peers: peers}}}
		})}}}, false)
	defer s.Stop(false)
	var out bytes.Buffer
	root := newRootCommand()
	root.SetOut(&out)
	root.SetArgs([]string{"__complete", "ping", "--subnet-file", file, ""})
	if err := root.Execute(); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "host-b\n") || !strings.Contains(out.String(), "10.5.1.0/24\n") {
		t.Errorf("completions: %q", out.String())
	}
	if strings.ContainsAny(out.String(), "$`();<> |&\"'\\") || strings.Contains(out.String(), "\n-c") {
		t.Errorf("completions that a shell runs: %q", out.String())
	}
}
