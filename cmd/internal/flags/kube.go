package flags

import (
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
)

// kubeFlags say that Kubernetes keeps the leases, in annotations of its Nodes.
type kubeFlags struct {
	Enabled          bool
	APIURL           string
	Kubeconfig       string // path
	AnnotationPrefix string
	SetAvailable     bool // set the Node's condition NetworkUnavailable

	// Of the environment, without a flag, as a DaemonSet sets it.
	NodeName, PodName, PodNamespace string
	eventQueueDepth                 string
}

// DefaultAnnotationPrefix is flannel's.
const DefaultAnnotationPrefix = "flannel.alpha.coreos.com"

func (o *kubeFlags) register(f *pflag.FlagSet) {
	f.BoolVar(&o.Enabled, "kube-subnet-mgr", false, "use the Kubernetes API instead of etcd; the node is $NODE_NAME, or that of the pod $POD_NAME in $POD_NAMESPACE")
	f.StringVar(&o.APIURL, "kube-api-url", "", "URL of the API server (default: that of --kubeconfig-file, or else of the pod's service account)")
	f.StringVar(&o.Kubeconfig, "kubeconfig-file", "", "kubeconfig file")
	f.StringVar(&o.AnnotationPrefix, "kube-annotation-prefix", DefaultAnnotationPrefix, "prefix of the Node annotations")
	f.BoolVar(&o.SetAvailable, "set-node-network-unavailable", true, "set the Node's condition NetworkUnavailable to False when ready")
}

// fromEnv reads the variables that have no flag.
func (o *kubeFlags) fromEnv(env func(string) (string, bool)) {
	for name, to := range map[string]*string{
		"NODE_NAME": &o.NodeName, "POD_NAME": &o.PodName, "POD_NAMESPACE": &o.PodNamespace, "EVENT_QUEUE_DEPTH": &o.eventQueueDepth,
	} {
		*to, _ = env(name)
	}
}

// check refuses what opening the store would, as far as that can be known before.
//
// EVENT_QUEUE_DEPTH has no effect, because there is no queue that could overflow; neither has
// CONT_WHEN_CACHE_NOT_READY, because overlayd always goes on and tries again.
func (o *kubeFlags) check(p *problems) {
	if strings.Contains(o.APIURL, "@") { // the value is left out: it may hold a password
		p.add(errors.New("--kube-api-url: want a URL without user and password: these belong in --kubeconfig-file"))
	}
	if u, err := url.Parse(o.APIURL); err == nil && !isPort(u.Port()) {
		p.add(fmt.Errorf("--kube-api-url: port %s: want a port from 1 to 65535", u.Port()))
	}
	if o.eventQueueDepth != "" {
		if _, err := strconv.Atoi(o.eventQueueDepth); err != nil {
			p.add(fmt.Errorf("env EVENT_QUEUE_DEPTH=%s format error: want a whole number", o.eventQueueDepth))
		}
	}
}
