package kube

import (
	"context"
	"errors"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// versioned is an answer of the API server.
type versioned interface{ GetResourceVersion() string }

// noteAnswer reports a request to StoreHealth: its error, or else the resourceVersion of the
// answer, which may be nil. An error that the end of ctx caused says nothing about the server.
func (s *Store) noteAnswer(ctx context.Context, answer versioned, err error) {
	if err == nil {
		s.silence.note(ctx, askServer, nil)
	}
	switch {
	case err == nil && answer != nil:
		s.Answered(versionNumber(answer.GetResourceVersion()), nil)
	case err == nil:
		s.Answered(0, nil)
	case ctx.Err() != nil && !errors.Is(ctx.Err(), context.DeadlineExceeded):
	case isAnswer(err):
		s.Answered(0, err)
	default:
		s.noteFailure(ctx, err)
	}
}

// isAnswer reports whether the API server itself gave this error.
func isAnswer(err error) bool {
	status := apierrors.APIStatus(nil)
	return errors.As(err, &status) || errors.As(err, new(*redirectError))
}

// versionNumber returns a resourceVersion as a number, 0 if it is not one: it is opaque to
// clients, and those of etcd and kine are numbers.
func versionNumber(version string) int64 {
	n, err := strconv.ParseInt(version, 10, 64)
	if err != nil {
		return 0
	}
	return max(n, 0)
}
