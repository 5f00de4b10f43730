package flags

import (
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// paths are the flags that name a file or a directory. EnvFlag is missing because its path has to be absolute.
var paths = []string{"etcd-cafile", "etcd-certfile", "etcd-keyfile", "join-file", "etcd-password-file", "etcd-data-dir", "pki-dir",
	"kubeconfig-file", "net-config-path", "subnet-file", "subnet-dir"}

// urls are the flags with URLs, which may be unix://path.
var urls = []string{"etcd-endpoints", "etcd-listen-client-url"}

// MakeAbsolute makes relative paths in f absolute: they are of dir. A process that reads the flags of another one needs that.
func MakeAbsolute(f *pflag.FlagSet, dir string) {
	f.VisitAll(func(flag *pflag.Flag) {
		switch v := flag.Value.String(); {
		case slices.Contains(paths, flag.Name):
			_ = flag.Value.Set(absolute(dir, v)) // any text is one
		case slices.Contains(urls, flag.Name):
			all := strings.Split(v, ",")
			for i, u := range all {
				if path, ok := strings.CutPrefix(strings.TrimSpace(u), "unix://"); ok {
					all[i] = "unix://" + absolute(dir, path)
				}
			}
			_ = flag.Value.Set(strings.Join(all, ","))
		}
	})
}

// absolute returns path, joined to dir if it is relative. An empty path stays empty.
func absolute(dir, path string) string {
	if path == "" || filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(dir, path)
}
