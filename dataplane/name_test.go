package dataplane

import "testing"

func TestDeviceNames(t *testing.T) {
	for name, want := range map[string]string{
		DeviceName(1):                "flannel.1",
		DeviceNameV6(4096):           "flannel-v6.4096",
		DeviceName(MaxDeviceVNI):     "flannel.9999999",
		DeviceNameV6(MaxDeviceVNIV6): "flannel-v6.9999",
	} {
		if name != want || len(name) > 15 || !IsDeviceName(name) {
			t.Errorf("name %q, want %q", name, want)
		}
	}
	for _, long := range []string{DeviceName(MaxDeviceVNI + 1), DeviceNameV6(MaxDeviceVNIV6 + 1)} {
		if len(long) <= 15 {
			t.Errorf("%q would fit", long)
		}
	}
	for _, other := range []string{"flannel.", "flannel.x", "flannel-v6.", "flannel1", "eth0", "flannel.1x", ""} {
		if IsDeviceName(other) {
			t.Errorf("%q is taken for an overlay device", other)
		}
	}
}

func TestDeviceVNI(t *testing.T) {
	for name, want := range map[string]uint32{"flannel.1": 1, "flannel-v6.4096": 4096, "flannel.16777215": 1<<24 - 1} {
		if vni, ok := DeviceVNI(name); vni != want || !ok {
			t.Errorf("%q: VNI %d, %v, want %d", name, vni, ok, want)
		}
	}
	for _, other := range []string{"flannel.", "flannel.01", "flannel.x", "flannel.16777216", "flannel-v6.-1", "eth0", "7", ""} {
		if vni, ok := DeviceVNI(other); ok {
			t.Errorf("%q: VNI %d", other, vni)
		}
	}
}
