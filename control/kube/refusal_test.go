package kube

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/overlayd/overlayd/control"
)

// TestRefusals: log and status have the code of a refusal, a part of the server's text, and what to do.
func TestRefusals(t *testing.T) {
	for _, tt := range []struct {
		code       int
		reason     metav1.StatusReason
		text, want string
	}{
		{http.StatusUnauthorized, metav1.StatusReasonUnauthorized, "no", "401 Unauthorized: no (replace the token"},
		{http.StatusForbidden, metav1.StatusReasonForbidden, "no", "403 Forbidden: no (give this user the rights"},
		{http.StatusForbidden, metav1.StatusReasonForbidden, strings.Repeat("no", 10_000), "… (give this user the rights"},
		{http.StatusGone, metav1.StatusReasonExpired, "", "410 Gone (overlayd lists the nodes again"},
		{http.StatusInternalServerError, metav1.StatusReasonInternalError, "a\nb", `500 Internal Server Error: a\nb`},
	} {
		log := make(lines, 1000)
		s := openAt(t, slog.NewTextHandler(log, nil), func(w http.ResponseWriter, _ *http.Request) bool {
			w.WriteHeader(tt.code)
			json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure,
				Reason: tt.reason, Code: int32(tt.code), Message: tt.text})
			return true
		})
		_, err := s.Published(t.Context(), control.Node{})
		if st := s.Status(); err == nil || apierrors.ReasonForError(err) != tt.reason || !strings.Contains(st.Err, tt.want) || len(st.Err) > refusalBytes+150 {
			t.Errorf("%d: status %q, %v; want %q", tt.code, st.Err, err, tt.want)
		}
		coded := fmt.Sprintf("%d %s", tt.code, http.StatusText(tt.code))
		if _, err := s.ServerVersion(t.Context()); err == nil || !strings.Contains(err.Error(), coded) {
			t.Errorf("%d: version: %v", tt.code, err)
		}
		lw := s.listWatch(t.Context(), s.watchReader(t.Context()))
		for what, do := range map[string]func() error{
			"list nodes":  func() error { _, err := lw.ListWithContextFunc(t.Context(), metav1.ListOptions{}); return err },
			"watch nodes": func() error { _, err := lw.WatchFuncWithContext(t.Context(), metav1.ListOptions{}); return err },
		} {
			if err := do(); err == nil {
				t.Errorf("%d: no error to %s", tt.code, what)
			}
			awaitLine(t, log, 10*time.Second, what+`: trying again" err="`+coded)
		}
	}
}
