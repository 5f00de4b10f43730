package kube

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestPagesOfLargeNodes: a list of large Nodes costs few more requests than it has pages, and behind the large ones the pages get long again.
func TestPagesOfLargeNodes(t *testing.T) {
	for _, tt := range []struct {
		large, small int
		most         int // requests
	}{
		{0, 1000, 4},
		{600, 0, 50},
		{100, 2000, 25},
	} {
		t.Run(fmt.Sprintf("%d large, %d small", tt.large, tt.small), func(t *testing.T) {
			asked, text := 0, strings.Repeat("x", 250_000)
			s := openAt(t, slog.DiscardHandler, func(w http.ResponseWriter, r *http.Request) bool {
				asked++
				limit, _ := strconv.Atoi(r.URL.Query().Get("limit"))
				from, _ := strconv.Atoi(r.URL.Query().Get("continue"))
				list := nodeList("5")
				for i := from; i < min(from+limit, tt.large+tt.small); i++ {
					n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i)}}
					if i < tt.large {
						n.Annotations = map[string]string{"x": text}
					}
					list.Items = append(list.Items, n)
				}
				if to := from + limit; to < tt.large+tt.small {
					list.Continue = strconv.Itoa(to)
				}
				json.NewEncoder(w).Encode(list)
				return true
			})
			lw, got := s.listWatch(t.Context(), s.watchReader(t.Context())), 0
			for o := (metav1.ListOptions{Limit: pageSize}); ; {
				page, err := lw.ListWithContextFunc(t.Context(), o)
				if err != nil {
					t.Fatal(err)
				}
				list := page.(*corev1.NodeList)
				if got += len(list.Items); list.Continue == "" {
					break
				}
				o.Continue = list.Continue
			}
			if got != tt.large+tt.small || asked > tt.most {
				t.Errorf("%d Nodes by %d requests, want %d by %d at most", got, asked, tt.large+tt.small, tt.most)
			}
		})
	}
}

// TestLongListWithoutPages: when its pages have expired client-go asks for all Nodes at once. If they are too long for one answer, it begins again with pages.
func TestLongListWithoutPages(t *testing.T) {
	s := openAt(t, slog.DiscardHandler, func(w http.ResponseWriter, r *http.Request) bool {
		list := nodeList("5")
		for i := range 30 {
			list.Items = append(list.Items, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i), Annotations: map[string]string{"x": strings.Repeat("x", 250_000)}}})
		}
		json.NewEncoder(w).Encode(list)
		return true
	})
	lw := s.listWatch(t.Context(), s.watchReader(t.Context()))
	if _, err := lw.ListWithContextFunc(t.Context(), metav1.ListOptions{}); !apierrors.IsResourceExpired(err) {
		t.Errorf("got %v", err)
	}
}
