package tap

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"github.com/overlayd/overlayd/cmd/internal/admin"
	"github.com/overlayd/overlayd/cmd/internal/status"
	"github.com/overlayd/overlayd/cmd/internal/stream"
	"github.com/overlayd/overlayd/control/controller"
	"github.com/overlayd/overlayd/dataplane/capture"
)

// Server answers with streams.
type Server struct {
	Hub      *capture.Hub
	Hello    stream.Hello            // but for its Filter
	Networks func() []status.Network // how they are now
	Log      *slog.Logger
}

// Route is that of the admin socket.
func (s *Server) Route() admin.Route {
	return admin.Route{Pattern: "GET " + stream.Path, Root: true, Handler: s}
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q, err := stream.ParseQuery(r.URL.Query())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	networks := s.Networks()
	if err := offers(networks); err != nil {
		http.Error(w, err.Error(), http.StatusConflict)
		return
	}
	filter := capture.Filter{Drops: q.Drops, Snap: q.Snap}
	if filter.Peers, err = vtepsOf(networks, q.Peer); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	c, err := s.Hub.Start(filter)
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	defer c.Close()
	s.stream(w, r, c, q)
}

// stream serves a capture, and logs it.
func (s *Server) stream(w http.ResponseWriter, r *http.Request, c *capture.Capture, q stream.Query) {
	who := admin.CallerOf(r)
	log := s.Log.With("uid", who.UID, "pid", who.PID, "filter", q.String())
	log.Info("a capture begins")
	begin := time.Now()
	w.Header().Set("Content-Type", "application/octet-stream")
	n := session{Server: s, to: w, control: http.NewResponseController(w), capture: c, left: q.Count, names: stream.Names{}}
	hello := s.Hello
	hello.V, hello.Filter, hello.Verdicts = stream.Version, q.String(), capture.Verdicts()
	err := n.run(r.Context(), hello)
	log.Info("a capture ends", "packets", n.packets, "lost", c.Lost(), "seconds", int(time.Since(begin).Seconds()), "why", why(err))
}

// why says why a session ends.
func why(err error) string {
	if err == nil {
		return "the client wanted no more"
	}
	return err.Error()
}

// The modes of a status.Network.
const (
	modeKernel    = "kernel"
	modeUserspace = "userspace"
)

// offers returns why no packets can be captured: no network is carried by the userspace dataplane.
func offers(networks []status.Network) (err error) {
	for i := range networks {
		switch n := &networks[i]; n.Mode {
		case modeUserspace:
			return nil
		case modeKernel:
			err = fmt.Errorf("the kernel dataplane does not offer captures: tcpdump -ni flannel.%d shows the packets of the overlay, and tcpdump -n udp port %d those of the underlay", n.VNI, n.Port)
		default:
			if !n.SessionStart.IsZero() && err == nil {
				err = errors.New("no packet passes overlayd, whose backend is not vxlan: tcpdump -n shows them on the underlay")
			}
		}
	}
	return err
}

// vtepsOf returns the VTEPs of the peers that name means; none if it is empty.
func vtepsOf(networks []status.Network, name string) (vteps []netip.Addr, err error) {
	if name == "" {
		return nil, nil
	}
	direct := false
	for _, n := range status.FindPeers(networks, name).Networks {
		for _, p := range n.Peers {
			direct = direct || p.State == controller.PeerDirect
			if p.VTEP.IsValid() && p.State != controller.PeerDirect && !slices.Contains(vteps, p.VTEP) {
				vteps = append(vteps, p.VTEP)
			}
		}
	}
	switch {
	case len(vteps) > 0:
		return vteps, nil
	case direct:
		return nil, fmt.Errorf("peer %.80q is reached by a direct route, and its packets do not pass overlayd: use tcpdump -n on the underlay", name)
	}
	return nil, fmt.Errorf("peer %.80q: the daemon knows no such peer: want a node's name, its subnet, its VTEP or an address in its subnet, as overlayd status -o wide lists them", name)
}

// namesOf returns the names of all peers.
func namesOf(networks []status.Network) stream.Names {
	names := stream.Names{}
	for i := range networks {
		for _, p := range networks[i].Peers {
			if p.Name != "" && p.VTEP.IsValid() {
				names[p.VTEP] = p.Name
			}
		}
	}
	return names
}
