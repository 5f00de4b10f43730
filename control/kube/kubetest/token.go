package kubetest

import (
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// TokenOn returns a token of a service account as kubelet gives one to a pod on a node: it makes the pod, and binds the token to it.
func TokenOn(tb testing.TB, c kubernetes.Interface, namespace, account, node string) string {
	tb.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: account + "-" + node, Namespace: namespace},
		Spec: corev1.PodSpec{NodeName: node, ServiceAccountName: account, Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	pod, err := c.CoreV1().Pods(namespace).Create(tb.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		tb.Fatal(err)
	}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}}}
	request, err = c.CoreV1().ServiceAccounts(namespace).CreateToken(tb.Context(), account, request, metav1.CreateOptions{})
	if err != nil {
		tb.Fatal(err)
	}
	return request.Status.Token
}
