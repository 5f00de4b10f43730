package main

import (
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/overlayd/overlayd/control/kube"
)

// kubeOptions say that Kubernetes keeps the leases, in annotations of its Nodes.
type kubeOptions struct {
	kube                 bool
	kubeAPIURL           string
	kubeconfigFile       string
	kubeAnnotationPrefix string
	kubeSetAvailable     bool

	// Of the environment, without a flag, as a DaemonSet sets it.
	nodeName, podName, podNamespace string
	eventQueueDepth                 string
}

func (o *kubeOptions) register(f *pflag.FlagSet) {
	f.BoolVar(&o.kube, "kube-subnet-mgr", false, "use the Kubernetes API instead of etcd; the node is $NODE_NAME, or that of the pod $POD_NAME in $POD_NAMESPACE")
	f.StringVar(&o.kubeAPIURL, "kube-api-url", "", "URL of the API server; without it and --kubeconfig-file that of the pod's service account")
	f.StringVar(&o.kubeconfigFile, "kubeconfig-file", "", "kubeconfig file")
	f.StringVar(&o.kubeAnnotationPrefix, "kube-annotation-prefix", kube.DefaultAnnotationPrefix, "prefix of the Node annotations")
	f.BoolVar(&o.kubeSetAvailable, "set-node-network-unavailable", true, "set the Node's condition NetworkUnavailable to False when ready")
}

func (o *kubeOptions) fromEnv(env func(string) (string, bool)) {
	for name, to := range map[string]*string{
		"NODE_NAME": &o.nodeName, "POD_NAME": &o.podName, "POD_NAMESPACE": &o.podNamespace, "EVENT_QUEUE_DEPTH": &o.eventQueueDepth,
	} {
		*to, _ = env(name)
	}
}

// check refuses what Open would, where it can be known before; the rest is Open's.
//
// EVENT_QUEUE_DEPTH has no effect, as there is no queue that could overflow, and neither
// has CONT_WHEN_CACHE_NOT_READY: overlayd always goes on and tries again.
func (o *kubeOptions) check(p *problems) {
	if strings.Contains(o.kubeAPIURL, "@") { // the value is left out: it may hold a password
		p.add(errors.New("--kube-api-url: want a URL without user and password: these belong in --kubeconfig-file"))
	}
	if o.eventQueueDepth != "" {
		if _, err := strconv.Atoi(o.eventQueueDepth); err != nil {
			p.add(fmt.Errorf("env EVENT_QUEUE_DEPTH=%s format error: want a whole number", o.eventQueueDepth))
		}
	}
}

func (o *options) kubeConfig(log *slog.Logger) kube.Config {
	return kube.Config{
		Kubeconfig:                o.kubeconfigFile,
		APIURL:                    o.kubeAPIURL,
		NodeName:                  o.nodeName,
		PodName:                   o.podName,
		PodNamespace:              o.podNamespace,
		AnnotationPrefix:          o.kubeAnnotationPrefix,
		NetConfigPath:             o.netConfigPath,
		SetNodeNetworkUnavailable: o.kubeSetAvailable,
		Log:                       log,
	}
}
