package etcdrpc

import (
	"strings"
	"testing"
)

func TestCheckVersion(t *testing.T) {
	for version, ok := range map[string]bool{"3.4.0": true, "3.4.23": true, "3.7.3": true, "3.10.1": true, "4.0.0": true, "": true, "unknown": true,
		"3.3.27": false, "2.3.8": false, "3.0.17": false} {
		err := checkVersionText(version)
		if (err == nil) != ok {
			t.Errorf("version %q: %v", version, err)
		}
		if err != nil && (!strings.Contains(err.Error(), version) || !strings.Contains(err.Error(), "3.4")) {
			t.Errorf("version %q: %v does not say what is wanted", version, err)
		}
	}
}
