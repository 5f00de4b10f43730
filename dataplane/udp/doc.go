// Package udp makes the UDP sockets by which VXLAN datagrams travel, says what keeps a port from
// being bound, and makes a detour while a port changes hands. It knows nothing of VXLAN.
package udp
