package kube

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/overlayd/overlayd/control"
)

// refusal is an error that the API server gave, with its code and what to do about it. The text of the server alone may be anything.
type refusal struct {
	status metav1.Status
	err    error
}

// refusalBytes is how much of the server's own text is told.
const refusalBytes = 200

// Error implements error.
func (r *refusal) Error() string {
	name := http.StatusText(int(r.status.Code))
	if name == "" {
		name = string(r.status.Reason)
	}
	text := strings.TrimSpace(fmt.Sprintf("%d %s", r.status.Code, name))
	if r.status.Message != "" {
		text += ": " + control.Printable(r.status.Message, refusalBytes)
	}
	switch r.status.Code {
	case http.StatusUnauthorized:
		text += " (replace the token or certificate of the service account or kubeconfig: see docs/kubernetes.md)"
	case http.StatusForbidden:
		text += " (give this user the rights of overlayd's ClusterRole: see docs/kubernetes.md)"
	case http.StatusGone:
		text += " (overlayd lists the nodes again; if this goes on, look at the log of the API server)"
	}
	return text
}

// Unwrap lets errors.As see the status.
func (r *refusal) Unwrap() error { return r.err }

// explain makes an error of the API server a refusal.
func explain(err error) error {
	if status := apierrors.APIStatus(nil); errors.As(err, &status) {
		return &refusal{status.Status(), err}
	}
	return err
}
