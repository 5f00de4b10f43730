package kube

import (
	"context"
	"errors"
	"net/http"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
)

// client reads and writes the kinds of object that the store needs. client-go's clientset does so for every kind that
// Kubernetes has, and sets all of them up whenever the program starts: 5 ms, for a daemon that has crashed and for
// every command. Its generic client links what fakes of it need, such as OpenAPI: 3 MB of program and 0.3 MB of heap for everybody.
type client struct {
	core, auth rest.Interface // by API group
	codec      runtime.ParameterCodec
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
		c.ContentType, c.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON
		c.NegotiatedSerializer = rest.CodecFactoryForGeneratedClient(scheme, serializer.NewCodecFactory(scheme)).WithoutConversion()
		return rest.RESTClientForConfigAndClient(c, h)
	}
	core, err := group("/api", corev1.SchemeGroupVersion)
	auth, aerr := group("/apis", authorizationv1.SchemeGroupVersion)
	if err = errors.Join(err, aerr); err != nil {
		return nil, err
	}
	return &client{core: core, auth: auth, codec: runtime.NewParameterCodec(scheme)}, nil
}

// do sends a request and decodes the answer into one of its type.
func do[T any, P interface {
	*T
	runtime.Object
}](ctx context.Context, r *rest.Request) (P, error) {
	answer := P(new(T))
	err := r.Do(ctx).Into(answer)
	return answer, explain(err)
}

func (c *client) node(ctx context.Context, name string) (*corev1.Node, error) {
	return do[corev1.Node](ctx, c.core.Get().Resource("nodes").Name(name))
}

// list is a request for Nodes, which ends when o says so.
func (c *client) list(o metav1.ListOptions) *rest.Request {
	r := c.core.Get().Resource("nodes").VersionedParams(&o, c.codec)
	if o.TimeoutSeconds != nil {
		r.Timeout(time.Duration(*o.TimeoutSeconds) * time.Second)
	}
	return r
}

func (c *client) nodes(ctx context.Context, o metav1.ListOptions) (*corev1.NodeList, error) {
	return do[corev1.NodeList](ctx, c.list(o))
}

func (c *client) watchNodes(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	o.Watch = true
	w, err := c.list(o).Watch(ctx)
	if _, answered := w.(*watch.StreamWatcher); err == nil && !answered {
		return nil, errNoWatch
	}
	return w, explain(err)
}

// errNoWatch is the error for which client-go has a watch that ends at once.
var errNoWatch = errors.New("the API server does not answer, or closes the connection")

// patchStatus merges text into the status subresource of a Node, and returns the Node.
func (c *client) patchStatus(ctx context.Context, name string, text []byte) (*corev1.Node, error) {
	return do[corev1.Node](ctx, c.core.Patch(types.StrategicMergePatchType).Resource("nodes").Name(name).SubResource("status").Body(text))
}

func (c *client) pod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	return do[corev1.Pod](ctx, c.core.Get().Namespace(namespace).Resource("pods").Name(name))
}

func (c *client) createEvent(ctx context.Context, e *corev1.Event) error {
	_, err := do[corev1.Event](ctx, c.core.Post().Namespace(e.Namespace).Resource("events").Body(e))
	return err
}

// mayUser asks whether the client's own user may do something.
func (c *client) mayUser(ctx context.Context, what authorizationv1.ResourceAttributes) (bool, error) {
	review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &what}}
	review, err := do[authorizationv1.SelfSubjectAccessReview](ctx, c.auth.Post().Resource("selfsubjectaccessreviews").Body(review))
	return review.Status.Allowed, err
}
