package etcd_test

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/overlayd/overlayd/control"
	"github.com/overlayd/overlayd/control/etcd"
	"github.com/overlayd/overlayd/control/etcd/embedded"
	"github.com/overlayd/overlayd/dataplane"
)

func Example() {
	if err := example(context.Background()); err != nil {
		fmt.Println(err)
	}
	// Output:
	// 10.5.7.0-24
	// {"PublicIP":"192.0.2.1","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"f2:8d:c1:aa:b6:f7"}}
}

func example(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "etcd")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	server, err := embedded.Start(ctx, embedded.Config{Dir: dir, ListenClient: "unix://" + filepath.Join(dir, "sock")})
	if err != nil {
		return err
	}
	defer server.Stop()

	store, err := etcd.Open(ctx, etcd.Config{Endpoints: server.URLs()})
	if err != nil {
		return err
	}
	defer store.Close()
	if _, err := store.Init(ctx, []byte(`{"Network":"10.5.0.0/16"}`)); err != nil {
		return err
	}
	node := control.Node{ID: "5f0c", Name: "host-a", PublicIP: netip.MustParseAddr("192.0.2.1"),
		Previous: []netip.Prefix{netip.MustParsePrefix("10.5.7.0/24")}}
	vtep := dataplane.VTEP{Addr: node.PublicIP, MAC: dataplane.MAC(node.PublicIP, 1), VNI: 1}
	lease, err := store.Acquire(ctx, node, []dataplane.VTEP{vtep})
	if err != nil {
		return err
	}
	fmt.Println(lease.Key())
	fmt.Printf("%s\n", lease.Value())
	return store.Release(ctx, lease)
}
