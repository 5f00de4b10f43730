// Package statuspage shows how a daemon is to a browser: the verdict, what to do, and a matrix of the peers. The page is made
// here, so that it needs no JavaScript; with it, the page shows every two seconds what is new.
package statuspage

import (
	"crypto/sha256"
	_ "embed" // of the page
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html/template"
	"net"
	"net/http"
	"net/netip"
	"strings"

	"github.com/overlayd/overlayd/cmd/internal/status"
	"github.com/overlayd/overlayd/cmd/internal/statustext"
)

//go:embed page.html
var source string

// Handler answers GET / with the page and GET /v1/status with the same as JSON. It answers only requests for an IP address or
// for localhost: a name could be that of another site, which has its visitors' browsers ask here.
func Handler(report func() status.Daemon) http.Handler {
	page, policy := template.Must(template.New("page").Funcs(functions()).Parse(source)), contentPolicy()
	mux := http.NewServeMux()
	mux.Handle("/{$}", status.Shared(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		var text strings.Builder
		if err := page.Execute(&text, report()); err != nil {
			http.Error(w, "the page cannot be made: "+err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Header().Set("Content-Security-Policy", policy)
		_, _ = w.Write([]byte(text.String())) // this cannot fail: see Shared
	})))
	mux.Handle("/v1/status", status.Shared(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(report()) // likewise
	})))
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "there are /, /v1/status and /metrics", http.StatusNotFound)
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Cache-Control", "no-store")
		if !isAddress(r.Host) {
			http.Error(w, "ask for an IP address or for localhost", http.StatusForbidden)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// isAddress reports whether the Host of a request is an IP address or localhost, with or without a port.
func isAddress(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.Trim(host, "[]")
	_, err := netip.ParseAddr(host)
	return err == nil || strings.EqualFold(host, "localhost")
}

// contentPolicy lets a browser use the page's own style and script alone.
func contentPolicy() string {
	sum := func(element string) string {
		_, rest, _ := strings.Cut(source, "<"+element+">")
		text, _, _ := strings.Cut(rest, "</"+element+">")
		sum := sha256.Sum256([]byte(text))
		return base64.StdEncoding.EncodeToString(sum[:])
	}
	return fmt.Sprintf("default-src 'none'; connect-src 'self'; style-src 'sha256-%s'; script-src 'sha256-%s'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
		sum("style"), sum("script"))
}

func functions() template.FuncMap {
	return template.FuncMap{
		"facts": func(n status.Network, d status.Daemon) []statustext.Fact { return statustext.Facts(&n, d.At) },
		"cells": cells,
		"short": status.Short,
	}
}
