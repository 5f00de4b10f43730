package dataplane

import (
	"strconv"
	"strings"
)

// The names of the overlay devices, which are flannel's: a prefix, then the VNI in decimal.
const (
	DevicePrefix   = "flannel."    // the kernel's device over IPv4; the userspace dataplane's over both families
	DevicePrefixV6 = "flannel-v6." // the kernel's device over IPv6
)

// The largest VNIs that fit behind the prefixes: a device name has at most 15 bytes (IFNAMSIZ).
const (
	MaxDeviceVNI   = 9_999_999
	MaxDeviceVNIV6 = 9_999
)

// DeviceName returns the name of the overlay device over IPv4, or over both families.
func DeviceName(vni uint32) string { return DevicePrefix + strconv.FormatUint(uint64(vni), 10) }

// DeviceNameV6 returns the name of the kernel's overlay device over IPv6.
func DeviceNameV6(vni uint32) string { return DevicePrefixV6 + strconv.FormatUint(uint64(vni), 10) }

// guardPrefix begins the names of the nftables tables of dataplane/guard; the VNI in decimal follows.
const guardPrefix = "overlayd-guard-"

// GuardTable returns the name of the table of family inet that guards the overlay of a VNI.
func GuardTable(vni uint32) string { return guardPrefix + strconv.FormatUint(uint64(vni), 10) }

// GuardedVNI returns the VNI of a table by its name; ok is false if no guard gives a table that name.
func GuardedVNI(table string) (vni uint32, ok bool) {
	n, err := strconv.ParseUint(strings.TrimPrefix(table, guardPrefix), 10, 24)
	vni = uint32(n)
	return vni, err == nil && table == GuardTable(vni)
}

// IsDeviceName reports whether a device of that name is an overlay device of overlayd or
// flannel: one of the prefixes, and digits only behind it.
func IsDeviceName(name string) bool {
	digits, ok := vniOf(name)
	return ok && digits != "" && strings.Trim(digits, "0123456789") == ""
}

// DeviceVNI returns the VNI of an overlay device by its name; ok is false if overlayd gives that
// name to no device.
func DeviceVNI(name string) (vni uint32, ok bool) {
	digits, _ := vniOf(name)
	n, err := strconv.ParseUint(digits, 10, 24)
	vni = uint32(n)
	return vni, err == nil && (name == DeviceName(vni) || name == DeviceNameV6(vni))
}

func vniOf(name string) (digits string, ok bool) {
	digits, ok = strings.CutPrefix(name, DevicePrefix)
	if !ok {
		digits, ok = strings.CutPrefix(name, DevicePrefixV6)
	}
	return digits, ok
}
