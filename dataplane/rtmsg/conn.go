package rtmsg

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/dataplane/watch"
)

const (
	// batchMessages and batchBytes bound what one sendmsg carries. The answers to
	// one batch must fit the socket's receive buffer, which by default is 208 KiB
	// and charges about 1 KiB for each (net.core.rmem_default).
	batchMessages = 128
	batchBytes    = 32 << 10
	receiveBuffer = 4 << 20
	// answerTimeout bounds the wait for an answer. The kernel handles a request before sendmsg
	// returns, so answers are never late.
	answerTimeout = 10 * time.Second
)

// ErrOverrun means that the kernel dropped messages because the receive buffer was full. Only a
// dump can tell what has changed.
var ErrOverrun = errors.New("netlink receive buffer overrun")

// Conn is a netlink socket for many requests at once. One goroutine uses it.
type Conn struct {
	file *os.File // non-blocking and in Go's poller, so that reads have deadlines
	Port uint32   // netlink address, which the kernel names as the cause of a notification
	seq  uint32
	out  []byte
}

// inputs are the buffers for answers. A daemon has several sockets, and one of them waits for an answer now and then.
var inputs = sync.Pool{New: func() any { b := make([]byte, 64<<10); return &b }}

// Open opens a netlink socket in the network namespace of the calling thread.
func Open() (*Conn, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	c := &Conn{file: os.NewFile(uintptr(fd), "netlink")}
	if err := c.prepare(fd); err != nil {
		c.file.Close()
		return nil, fmt.Errorf("prepare netlink socket: %w", err)
	}
	return c, nil
}

func (c *Conn) prepare(fd int) error {
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	sa, err := unix.Getsockname(fd)
	if err != nil {
		return err
	}
	c.Port = sa.(*unix.SockaddrNetlink).Pid
	// These are optional, and old kernels or containers refuse some: texts of errors,
	// filters that are applied a second time anyway, a larger buffer.
	unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_EXT_ACK, 1)
	unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1)
	unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1)
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer) != nil {
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer)
	}
	return nil
}

// Close closes the socket.
func (c *Conn) Close() { c.file.Close() }

// kernelError is a refusal with the kernel's own text (netlink extended ack).
type kernelError struct {
	errno unix.Errno
	text  string
}

// Error implements error.
func (e *kernelError) Error() string {
	if e.text == "" {
		return e.errno.Error()
	}
	return e.errno.Error() + ": " + e.text
}

// Unwrap lets errors.Is and errors.As see the cause.
func (e *kernelError) Unwrap() error { return e.errno }

// Transact sends messages 0 to n-1 in as few system calls as possible. encode appends message
// i, or nothing to skip it; done gets its result. Only the last message of a batch asks for an
// acknowledgement. The kernel handles messages in order and always answers a refused one, so
// no answer before the acknowledgement means success. If Transact returns an error, the result
// of messages for which done was not called is unknown.
func (c *Conn) Transact(ctx context.Context, n int, encode func(i int, b []byte) []byte,
	done func(i int, reply []byte, err error)) error {
	for i := 0; i < n; {
		if err := ctx.Err(); err != nil {
			return err
		}
		c.out = c.out[:0]
		var sent []int // message numbers in order of their sequence numbers
		first, last := c.seq+1, 0
		for ; i < n && len(sent) < batchMessages && len(c.out) < batchBytes; i++ {
			start := len(c.out)
			if c.out = encode(i, c.out); len(c.out) == start {
				continue
			}
			c.seq++
			native.PutUint32(c.out[start+8:], c.seq)
			sent, last = append(sent, i), start
		}
		if len(sent) == 0 {
			continue
		}
		native.PutUint16(c.out[last+6:], native.Uint16(c.out[last+6:])|unix.NLM_F_ACK)
		if err := c.batch(first, sent, done); err != nil {
			return err
		}
	}
	return nil
}

// batch sends c.out and waits for the acknowledgement.
func (c *Conn) batch(first uint32, sent []int, done func(i int, reply []byte, err error)) error {
	if _, err := c.file.Write(c.out); err != nil {
		return fmt.Errorf("send netlink requests: %w", err)
	}
	results := make([]error, len(sent))
	replies := make([][]byte, len(sent))
	err := c.receive(func(h unix.NlMsghdr, body []byte) (end bool) {
		k := int(h.Seq - first)
		if k < 0 || k >= len(sent) {
			return false // a late answer to an earlier request
		}
		if h.Type != unix.NLMSG_ERROR {
			replies[k] = append([]byte(nil), body...)
			return false
		}
		results[k] = ackError(h, body)
		return k == len(sent)-1
	})
	if err != nil {
		return err
	}
	for k, i := range sent {
		done(i, replies[k], results[k])
	}
	return nil
}

// Dump sends one dump request and passes every object's message body to each.
// netlink.ErrDumpInterrupted means that these are inconsistent.
func (c *Conn) Dump(typ uint16, header []byte, attributes []byte, each func(body []byte)) error {
	c.seq++
	c.out = Begin(c.out[:0], typ, unix.NLM_F_DUMP, header)
	c.out = Finish(append(c.out, attributes...), 0)
	native.PutUint32(c.out[8:], c.seq)
	if _, err := c.file.Write(c.out); err != nil {
		return fmt.Errorf("send netlink dump request: %w", err)
	}
	var result error
	err := c.receive(func(h unix.NlMsghdr, body []byte) (end bool) {
		if h.Seq != c.seq {
			return false
		}
		if h.Flags&unix.NLM_F_DUMP_INTR != 0 && result == nil {
			result = netlink.ErrDumpInterrupted
		}
		if h.Type == unix.NLMSG_ERROR || h.Type == unix.NLMSG_DONE {
			if e := ackError(h, body); e != nil {
				result = e
			}
			return true
		}
		each(body)
		return false
	})
	return errors.Join(err, result)
}

// receive reads messages until each returns true.
func (c *Conn) receive(each func(h unix.NlMsghdr, body []byte) (end bool)) error {
	if err := c.file.SetReadDeadline(time.Now().Add(answerTimeout)); err != nil {
		return fmt.Errorf("receive from netlink: %w", err)
	}
	in := inputs.Get().(*[]byte)
	defer inputs.Put(in)
	for {
		n, err := c.file.Read(*in)
		if errors.Is(err, unix.ENOBUFS) {
			return ErrOverrun
		}
		if err != nil {
			return fmt.Errorf("receive from netlink: %w", err)
		}
		end := false
		watch.Messages((*in)[:n], func(h unix.NlMsghdr, body []byte) { end = each(h, body) || end })
		if end {
			return nil
		}
	}
}

// ackError reads an NLMSG_ERROR or NLMSG_DONE message; nil means success.
func ackError(h unix.NlMsghdr, body []byte) error {
	if len(body) < 4 || native.Uint32(body) == 0 {
		return nil
	}
	e := &kernelError{errno: unix.Errno(-int32(native.Uint32(body)))}
	skip := 4
	if h.Type == unix.NLMSG_ERROR {
		// The refused message follows: whole, or with NLM_F_CAPPED its header only.
		skip += unix.SizeofNlMsghdr
		if h.Flags&unix.NLM_F_CAPPED == 0 && len(body) >= 8 {
			skip = 4 + (int(native.Uint32(body[4:]))+3)&^3
		}
	}
	if h.Flags&unix.NLM_F_ACK_TLVS != 0 && skip >= 0 && skip <= len(body) {
		for typ, v := range Attrs(body[skip:]) {
			if typ == unix.NLMSGERR_ATTR_MSG && len(v) > 0 {
				e.text = string(v[:len(v)-1])
			}
		}
	}
	return e
}
