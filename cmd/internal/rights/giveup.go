package rights

import (
	"errors"
	"log/slog"
	"net/url"
	"strconv"
)

// PrivilegedPorts are those below: to bind one takes NetBindService (ip(7)).
const PrivilegedPorts = 1024

// GiveUp keeps some capabilities, gives up all others for good, and logs which ones are left.
func GiveUp(log *slog.Logger, keep Set) {
	switch left, err := Keep(keep); {
	case errors.Is(err, errors.ErrUnsupported):
		log.Warn("this process keeps all capabilities that it has: it was built with cgo", "fix", "build it with CGO_ENABLED=0, as make build does")
	case err != nil:
		log.Error("not all capabilities given up", "err", err)
	default:
		log.Info("set up: all capabilities but these are given up", "kept", left)
	}
}

// ForDirs returns the right to use files of others if one of dirs, in which this process makes files, is another user's.
func ForDirs(log *slog.Logger, dirs ...string) (keep Set) {
	for _, dir := range dirs {
		if Has(DACOverride) && !CanWrite(dir) {
			log.Warn("the capability DAC_OVERRIDE is kept: files are made in a directory of another user", "dir", dir, "fix", "give it to this user with chown")
			keep = DACOverride
		}
	}
	return keep
}

// BindsPrivileged reports whether it takes NetBindService to listen at a URL.
func BindsPrivileged(listen string) bool {
	u, err := url.Parse(listen)
	if err != nil {
		return false
	}
	port, err := strconv.ParseUint(u.Port(), 10, 16)
	return err == nil && port < PrivilegedPorts
}
