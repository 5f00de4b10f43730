package netnstest

import (
	"net"
	"testing"
	"time"
)

func TestLANHostsReachEachOther(t *testing.T) {
	a, b := New(t), New(t)
	LAN(t, "192.0.2.0/24", a, b)
	var server, client net.PacketConn
	b.Must(func() (err error) { server, err = net.ListenPacket("udp", "192.0.2.3:7"); return err })
	defer server.Close()
	a.Must(func() (err error) { client, err = net.ListenPacket("udp", "192.0.2.2:0"); return err })
	defer client.Close()
	if _, err := client.WriteTo([]byte("hello"), server.LocalAddr()); err != nil {
		t.Fatal(err)
	}
	server.SetReadDeadline(time.Now().Add(5 * time.Second))
	buf := make([]byte, 16)
	n, from, err := server.ReadFrom(buf)
	if err != nil || string(buf[:n]) != "hello" || from.String() != client.LocalAddr().String() {
		t.Fatalf("got %q from %v, %v", buf[:n], from, err)
	}
}
