// Command overlayd-cni is the CNI plugin of overlayd: a container runtime runs it for each pod, and it runs the bridge plugin
// with what subnet.env says. It takes the config of flannel's plugin, and may have its name.
package main

import (
	"fmt"
	"runtime"

	"github.com/overlayd/overlayd/cmd/internal/cni"
)

// version is set at link time (Makefile).
var version = "unknown"

func main() {
	cni.Main(fmt.Sprintf("overlayd-cni %s %s/%s", version, runtime.GOOS, runtime.GOARCH))
}
