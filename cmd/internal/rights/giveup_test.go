package rights

import "testing"

func TestBindsPrivileged(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]bool{
		"http://127.0.0.1:1023": true, "https://[::1]:80": true, "http://127.0.0.1:1024": false, "http://127.0.0.1:2379": false,
		"http://127.0.0.1": false, "unix:///run/etcd": false, "://": false, "": false,
	} {
		if got := BindsPrivileged(url); got != want {
			t.Errorf("%q: %v", url, got)
		}
	}
}
