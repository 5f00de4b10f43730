package kube

import (
	"errors"
	"net/http"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/gentype"
	"k8s.io/client-go/rest"
)

// client reads and writes the kinds of object that the store needs. client-go's clientset does so for every kind that
// Kubernetes has, and sets all of them up whenever the program starts: 5 ms, for a daemon that has crashed and for
// every command. This is client-go's generic client, with a scheme of these kinds alone.
type client struct {
	core, auth rest.Interface // by API group
	codec      runtime.ParameterCodec
	nodes      *gentype.ClientWithList[*corev1.Node, *corev1.NodeList]
}

// newClient makes one whose groups share the connections of h.
func newClient(r *rest.Config, h *http.Client) (*client, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), authorizationv1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	group := func(path string, gv schema.GroupVersion) (rest.Interface, error) {
		c := rest.CopyConfig(r)
		c.APIPath, c.GroupVersion = path, &gv
		c.NegotiatedSerializer = rest.CodecFactoryForGeneratedClient(scheme, serializer.NewCodecFactory(scheme)).WithoutConversion()
		return rest.RESTClientForConfigAndClient(c, h)
	}
	core, err := group("/api", corev1.SchemeGroupVersion)
	auth, aerr := group("/apis", authorizationv1.SchemeGroupVersion)
	if err = errors.Join(err, aerr); err != nil {
		return nil, err
	}
	c := &client{core: core, auth: auth, codec: runtime.NewParameterCodec(scheme)}
	c.nodes = gentype.NewClientWithList("nodes", core, c.codec, "", func() *corev1.Node { return new(corev1.Node) },
		func() *corev1.NodeList { return new(corev1.NodeList) }, gentype.PrefersProtobuf[*corev1.Node]())
	return c, nil
}

func (c *client) pods(namespace string) *gentype.Client[*corev1.Pod] {
	return gentype.NewClient("pods", c.core, c.codec, namespace, func() *corev1.Pod { return new(corev1.Pod) },
		gentype.PrefersProtobuf[*corev1.Pod]())
}

func (c *client) events(namespace string) *gentype.Client[*corev1.Event] {
	return gentype.NewClient("events", c.core, c.codec, namespace, func() *corev1.Event { return new(corev1.Event) },
		gentype.PrefersProtobuf[*corev1.Event]())
}

// reviews ask whether the client's own user may do something.
func (c *client) reviews() *gentype.Client[*authorizationv1.SelfSubjectAccessReview] {
	return gentype.NewClient("selfsubjectaccessreviews", c.auth, c.codec, "",
		func() *authorizationv1.SelfSubjectAccessReview { return new(authorizationv1.SelfSubjectAccessReview) },
		gentype.PrefersProtobuf[*authorizationv1.SelfSubjectAccessReview]())
}
