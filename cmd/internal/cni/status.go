package cni

import (
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"
)

// status says whether an ADD would work now: with 50 that it would not, and with 51 that it would but that the daemon says
// pods cannot reach all others.
func (p plugin) status(args *skel.CmdArgs) error {
	c, err := parse(args.StdinData)
	if err != nil {
		return err
	}
	daemon := Ask(c.SubnetFile)
	err = CheckSubnetFile(c.SubnetFile)
	if err == nil {
		err = p.pass(plugins(args.Path), c, "STATUS")
	}
	if err != nil {
		e := types.NewError(types.ErrPluginNotAvailable, err.Error(), "")
		if why := new(types.Error); errors.As(err, &why) {
			e.Msg, e.Details = why.Msg, why.Details
		}
		if daemon.Answers && !daemon.Ready {
			e.Details = "overlayd is not ready: " + daemon.Why
		}
		return e
	}
	if daemon.Answers && !daemon.Ready {
		return types.NewError(types.ErrLimitedConnectivity, "overlayd is not ready: "+daemon.Why, "overlayd status says more")
	}
	return nil
}

// Daemon is what an overlayd tells about itself.
type Daemon struct {
	Answers bool // false: no overlayd is here; flanneld may run here
	Ready   bool
	Why     string // it is not ready
}

// answerTimeout bounds how long a daemon may take: a runtime waits meanwhile.
const answerTimeout = 2 * time.Second

// maxAnswer bounds the answer, in bytes: a daemon serves 4096 networks at most.
const maxAnswer = 4 << 20

// Ask asks the overlayd that writes a subnet file whether it is ready. One that serves several networks is asked for that of
// the file alone.
func Ask(subnetFile string) Daemon {
	dir, file := filepath.Split(subnetFile)
	if d := ask(subnetFile+".sock", ""); d.Answers {
		return d
	}
	return ask(filepath.Join(dir, "overlayd.sock"), strings.TrimSuffix(file, ".env"))
}

// nobody are the errors of a connection to a socket at which no overlayd listens. The last one is that of a path too long for a socket.
var nobody = []error{unix.ENOENT, unix.ECONNREFUSED, unix.EINVAL}

// ask asks at one socket. Who listens there is an overlayd, which is not ready unless it says so.
func ask(socket, network string) (d Daemon) {
	code, text, err := get(socket, "/readyz?verbose")
	if code == 404 || slices.ContainsFunc(nobody, func(e error) bool { return errors.Is(err, e) }) { // an older overlayd does not know the path
		return d
	}
	d.Answers = true
	if err == nil && code != 200 && code != 503 {
		err = fmt.Errorf("HTTP status %d", code)
	}
	if err != nil {
		d.Why = fmt.Sprintf("there is no proper answer at %s: %v", socket, err)
		return d
	}
	for line := range strings.Lines(text) {
		fault, fatal := strings.CutPrefix(strings.TrimSpace(line), "[-]")
		check, _, _ := strings.Cut(fault, " ")
		of, _, named := strings.Cut(check, "/")
		if fatal && (!named || network == "" || of == network) {
			d.Why = fault
			return d
		}
	}
	if code == 503 && !strings.HasSuffix(text, "readyz check failed\n") { // the line of this network may be what lacks
		d.Why = fmt.Sprintf("there is no whole answer at %s", socket)
		return d
	}
	d.Ready = true
	return d
}

// get is an HTTP GET at a Unix socket. With the client of net/http this program would be 2.1 MB larger and start 0.8 ms later,
// for every pod (measured with Go 1.26), and only STATUS asks.
func get(socket, path string) (code int, body string, err error) {
	c, err := net.DialTimeout("unix", socket, answerTimeout)
	if err != nil {
		return 0, "", err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(answerTimeout)); err != nil {
		return 0, "", err
	}
	if _, err := fmt.Fprintf(c, "GET %s HTTP/1.0\r\nHost: overlayd\r\n\r\n", path); err != nil {
		return 0, "", err
	}
	text, err := io.ReadAll(io.LimitReader(c, maxAnswer))
	if err != nil {
		return 0, "", err
	}
	head, body, _ := strings.Cut(string(text), "\r\n\r\n")
	var minor int
	if _, err = fmt.Sscanf(head, "HTTP/1.%d %d", &minor, &code); err != nil {
		return 0, "", fmt.Errorf("it is not HTTP: %w", err)
	}
	return code, body, nil
}
