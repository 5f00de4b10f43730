package main

// Paths below /proc/sys.
const (
	ipForward  = "net/ipv4/ip_forward"
	ip6Conf    = "net/ipv6/conf"
	ip6Forward = ip6Conf + "/all/forwarding"
)
