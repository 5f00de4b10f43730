package etcd_test
import ("testing";"time")
func TestDbg(t *testing.T) {
	c := newCluster(t)
	c.SetConfig(t, []byte(config))
	s := c.open(t)
	l := acquire(t, s, 1)
	c.stop(t)
	for range 3 {
	b := time.Now()
	_, err := s.Renew(t.Context(), l)
	t.Log(time.Since(b), err)
	b = time.Now()
	_, err = s.Network(t.Context())
	t.Log(time.Since(b), err)
	}
	c.proxy.close()
	for range 3 {
	b := time.Now()
	_, err := s.Renew(t.Context(), l)
	t.Log(time.Since(b), err)
	b = time.Now()
	_, err = s.Network(t.Context())
	t.Log(time.Since(b), err)
	}
}
