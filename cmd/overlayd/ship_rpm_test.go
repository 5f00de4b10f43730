//go:build ship

package main

import (
	"os"
	"strings"
	"testing"
)

// TestShipRPMRemoved: the script that runs before the rpm is removed ends overlayd and all instances of it, and disables them, under a real systemd.
// The units are those of the package, but for the program.
func TestShipRPMRemoved(t *testing.T) {
	d := bootDebian(t, newHosts(t, []string{under4}, 1).hosts[0])
	script, err := os.ReadFile("../../deploy/packages/rpm/preun")
	if err != nil {
		t.Fatal(err)
	}
	const unit = "[Service]\nExecStart=/bin/sleep infinity\n[Install]\nWantedBy=multi-user.target\n"
	for file, text := range map[string]string{
		"root/preun":       "#!/bin/sh\n" + string(script),
		"usr/bin/overlayd": "#!/bin/sh\nsystemctl is-active overlayd.service overlayd@blue.service || echo cleanup runs\n",
		"usr/lib/systemd/system/overlayd.service":  unit,
		"usr/lib/systemd/system/overlayd@.service": unit,
	} {
		if err := os.WriteFile(d.path(file), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	d.must("systemctl", "daemon-reload")
	d.must("systemctl", "enable", "--now", "overlayd.service", "overlayd@blue.service")
	d.must("systemctl", "enable", "overlayd@red.service")
	d.must("sh", "/root/preun", "1")
	if out := d.must("systemctl", "is-active", "overlayd.service", "overlayd@blue.service"); strings.Contains(out, "inactive") {
		t.Errorf("an update ends the daemons: %s", out)
	}
	if out := d.must("sh", "/root/preun", "0"); !strings.Contains(out, "cleanup runs") {
		t.Errorf("no cleanup after the end of the daemons: %s", out)
	}
	for _, unit := range []string{"overlayd.service", "overlayd@blue.service", "overlayd@red.service"} {
		active, _ := d.do("systemctl", "is-active", unit)
		enabled, _ := d.do("systemctl", "is-enabled", unit)
		if active, enabled = strings.TrimSpace(active), strings.TrimSpace(enabled); active != "inactive" || enabled != "disabled" {
			t.Errorf("%s is %s and %s after the rpm is removed", unit, active, enabled)
		}
	}
}
