// Package udp makes the UDP sockets by which VXLAN datagrams travel, and says what keeps a port from
// being bound. It knows nothing of VXLAN.
package udp
