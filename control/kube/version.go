package kube

import (
	"context"
	"encoding/json"
	"fmt"
)

// ServerVersion implements control.Versioner. Everybody who has an account may ask for it.
func (s *Store) ServerVersion(ctx context.Context) (string, error) {
	text, err := s.api.core.Get().AbsPath("/version").DoRaw(ctx)
	if err != nil {
		return "", fmt.Errorf("read the version of the API server: %w", explain(err))
	}
	var v struct {
		GitVersion string `json:"gitVersion"`
	}
	if err := json.Unmarshal(text, &v); err != nil {
		return "", fmt.Errorf("read the version of the API server: %w", err)
	}
	return v.GitVersion, nil
}
