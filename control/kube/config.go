package kube

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/overlayd/overlayd/control/conns"
	"github.com/overlayd/overlayd/dataplane/hostfile"
)

// Defaults of Config, flannel's.
const (
	DefaultAnnotationPrefix = "flannel.alpha.coreos.com"
	DefaultNetConfigPath    = "/etc/kube-flannel/net-conf.json"
)

// Config says which API server to use and how.
type Config struct {
	Kubeconfig string // path; without it and APIURL: the service account of the pod
	APIURL     string // of the API server, in place of the kubeconfig's

	// NodeName is this Node's name ($NODE_NAME). Without it the API server is asked on
	// which Node the pod PodName of PodNamespace is ($POD_NAME, $POD_NAMESPACE).
	NodeName, PodName, PodNamespace string

	AnnotationPrefix string // "": DefaultAnnotationPrefix
	NetConfigPath    string // of the network config; "": DefaultNetConfigPath

	SetNodeNetworkUnavailable bool // MarkReady sets the condition NetworkUnavailable

	Log *slog.Logger // nil: discarded
}

// withDefaults fills in what is zero and checks the rest.
func (c Config) withDefaults() (Config, error) {
	if c.AnnotationPrefix == "" {
		c.AnnotationPrefix = DefaultAnnotationPrefix
	}
	if c.NetConfigPath == "" {
		c.NetConfigPath = DefaultNetConfigPath
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.NodeName == "" && (c.PodName == "" || c.PodNamespace == "") {
		return c, errors.New("node name unknown: set NODE_NAME; " +
			"without it, env variables POD_NAME and POD_NAMESPACE must be set")
	}
	return c, nil
}

const (
	// Together with retry these find a dead connection within 5 s and a server that is back
	// within 2 s. A server that hangs acknowledges what is sent, and keep-alives too: see pingAfter.
	dialTimeout    = 700 * time.Millisecond
	keepAliveIdle  = 2 * time.Second
	keepAliveEvery = time.Second
	keepAliveCount = 3
	userTimeout    = 5 * time.Second // of what was sent and not acknowledged: no keep-alive is sent then
)

// restConfig returns how to reach the API server. It reads files and no server.
func (c Config) restConfig() (*rest.Config, error) {
	r, err := c.credentials()
	if err != nil {
		return nil, err
	}
	dialer := &conns.Dialer{Log: c.Log, Dialer: net.Dialer{Timeout: dialTimeout, Control: setUserTimeout, KeepAliveConfig: net.KeepAliveConfig{
		Enable: true, Idle: keepAliveIdle, Interval: keepAliveEvery, Count: keepAliveCount}}}
	r.Dial = dialer.DialContext
	// Protobuf costs a tenth of what JSON does to decode.
	r.ContentType = "application/vnd.kubernetes.protobuf"
	r.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	r.UserAgent = "overlayd"
	r.QPS = -1 // what there is to limit is limited where it is repeated
	r.WarningHandler = rest.NoWarnings{}
	return r, nil
}

// setUserTimeout bounds how long the kernel retransmits (RFC 5482, Linux 2.6.37); without it
// that is a quarter of an hour.
func setUserTimeout(_, _ string, conn syscall.RawConn) error {
	var err error
	if broken := conn.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(userTimeout.Milliseconds()))
	}); broken != nil {
		return broken
	}
	if err != nil {
		return fmt.Errorf("set TCP_USER_TIMEOUT: %w", err)
	}
	return nil
}

// ServerHost returns the name or address of the API server, whether it comes from a kubeconfig file, a URL or the pod's
// environment; "" if that cannot be told.
func (c Config) ServerHost() string {
	r, err := c.credentials()
	if err != nil {
		return "" // Open has the error
	}
	if u := serverURL(r); u != nil {
		return u.Hostname()
	}
	return ""
}

// serverURL returns the URL of the API server; nil if that cannot be told.
func serverURL(r *rest.Config) *url.URL {
	u, _, err := rest.DefaultServerURL(r.Host, r.APIPath, schema.GroupVersion{}, true)
	if err != nil {
		return nil
	}
	return u
}

// endpointOf returns the URL of the API server for people, without user and password.
func endpointOf(r *rest.Config) string {
	u := serverURL(r)
	if u == nil {
		return ""
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host}).String()
}

// Files returns the files that a Store reads again while it runs, as far as that can be told: that of the network config, and those with the
// credentials that the kubeconfig names, or those of the pod's service account.
func (c Config) Files() []string {
	files := []string{cmp.Or(c.NetConfigPath, DefaultNetConfigPath)}
	r, err := c.credentials()
	if err != nil {
		return files // Open has the error
	}
	t := r.TLSClientConfig
	for _, f := range []struct {
		name   string
		inline []byte // is used instead
	}{{t.CAFile, t.CAData}, {t.CertFile, t.CertData}, {t.KeyFile, t.KeyData}, {r.BearerTokenFile, nil}} {
		if f.name != "" && len(f.inline) == 0 {
			files = append(files, f.name)
		}
	}
	return files
}

func (c Config) credentials() (*rest.Config, error) {
	if c.Kubeconfig == "" && c.APIURL == "" {
		r, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("use the pod's service account, as neither a kubeconfig nor an API URL is given: %w", err)
		}
		return r, nil
	}
	config, err := c.load()
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig %q: %w", c.Kubeconfig, err)
	}
	server := clientcmd.ConfigOverrides{ClusterInfo: api.Cluster{Server: c.APIURL}}
	r, err := clientcmd.NewNonInteractiveClientConfig(*config, "", &server, nil).ClientConfig()
	if clientcmd.IsEmptyConfig(err) { // as client-go does
		if pod, failed := rest.InClusterConfig(); failed == nil {
			return pod, nil
		}
	}
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig %q: %w", c.Kubeconfig, err)
	}
	return r, nil
}

// load reads the kubeconfig, as far as it is used. The files that it names must be regular, as client-go waits for what comes out of others.
func (c Config) load() (*api.Config, error) {
	if c.Kubeconfig == "" {
		return api.NewConfig(), nil
	}
	text, err := hostfile.Read(c.Kubeconfig)
	if err != nil {
		return nil, err
	}
	config, err := clientcmd.Load(text)
	if err != nil {
		return nil, err
	}
	for _, cluster := range config.Clusters {
		cluster.LocationOfOrigin = c.Kubeconfig
	}
	for _, user := range config.AuthInfos {
		user.LocationOfOrigin = c.Kubeconfig
	}
	if err := clientcmd.ResolveLocalPaths(config); err != nil {
		return nil, err
	}
	var named []string // by the context in use; what is missing is said when it is used
	if used := config.Contexts[config.CurrentContext]; used != nil {
		if cluster := config.Clusters[used.Cluster]; cluster != nil {
			named = append(named, cluster.CertificateAuthority)
		}
		if user := config.AuthInfos[used.AuthInfo]; user != nil {
			named = append(named, user.ClientCertificate, user.ClientKey, user.TokenFile)
		}
	}
	for _, path := range named {
		if err := hostfile.Check(path); err != nil {
			return nil, err
		}
	}
	return config, nil
}
