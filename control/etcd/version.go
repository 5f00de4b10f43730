package etcd

import (
	"context"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// ServerVersion implements control.Versioner.
func (s *Store) ServerVersion(ctx context.Context) (version string, err error) {
	err = s.rpc.Call(ctx, "read the version of etcd", func(ctx context.Context, c *clientv3.Client) error {
		r, err := c.Status(ctx, c.Endpoints()[0])
		if err == nil {
			version = r.Version
		}
		return err
	})
	return version, err
}
