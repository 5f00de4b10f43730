package testbed

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Supervisor starts a program, and starts it again when it has ended, as systemd does a unit of Type=notify with
// Restart=always and a file descriptor store: sd_notify(3), sd_listen_fds(3).
type Supervisor struct {
	argv  []string
	env   []string
	log   io.Writer
	start func(*exec.Cmd) error // in whichever namespace
	delay time.Duration         // before a program that has ended is started again
	room  int                   // files of the store

	socket *net.UnixConn
	group  sync.WaitGroup
	quit   chan struct{}

	mu       sync.Mutex
	cmd      *exec.Cmd
	ended    chan struct{} // closed when cmd has ended
	hurry    bool          // start without the delay
	between  func()        // called once before the next start
	files    []storedFile
	ready    chan struct{} // closed when cmd has said READY=1
	runs     int
	failures []error
}

// storedFile is a file of the store.
type storedFile struct {
	name string
	file *os.File
}

// Supervise starts a program under a supervisor, whose socket is in dir.
func Supervise(dir string, argv, env []string, log io.Writer, delay time.Duration, room int, start func(*exec.Cmd) error) (*Supervisor, error) {
	path := filepath.Join(dir, "notify")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return nil, err
	}
	s := &Supervisor{argv: argv, env: append(slices.Clone(env), "NOTIFY_SOCKET="+path), log: log, start: start, delay: delay, room: room,
		socket: socket, quit: make(chan struct{})}
	if err := s.run(); err != nil {
		socket.Close()
		return nil, err
	}
	s.group.Go(s.listen)
	s.group.Go(s.restart)
	return s, nil
}

// run starts the program with what is in the store, unless it was stopped for good.
func (s *Supervisor) run() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped() {
		return nil
	}
	cmd := exec.Command("/bin/sh", append([]string{"-c", `export LISTEN_PID=$$; exec "$@"`, "sh"}, s.argv...)...)
	cmd.Stdout, cmd.Stderr = s.log, s.log
	var names []string
	for _, f := range s.files {
		names = append(names, f.name)
		cmd.ExtraFiles = append(cmd.ExtraFiles, f.file)
	}
	cmd.Env = append(slices.Clone(s.env), fmt.Sprint("FDSTORE=", s.room))
	if len(names) > 0 {
		cmd.Env = append(cmd.Env, fmt.Sprint("LISTEN_FDS=", len(names)), "LISTEN_FDNAMES="+strings.Join(names, ":"))
	}
	if err := s.start(cmd); err != nil {
		return err
	}
	s.runs++
	s.cmd, s.ended, s.ready, s.hurry = cmd, make(chan struct{}), make(chan struct{}), false
	return nil
}

// restart starts the program again whenever it ends.
func (s *Supervisor) restart() {
	for {
		s.mu.Lock()
		cmd, ended := s.cmd, s.ended
		s.mu.Unlock()
		_ = cmd.Wait() // however it ended
		close(ended)
		s.mu.Lock()
		hurry, between := s.hurry, s.between
		s.between = nil
		s.mu.Unlock()
		if between != nil {
			between()
		}
		if !hurry {
			select {
			case <-s.quit:
				return
			case <-time.After(s.delay):
			}
		}
		if err := s.run(); err != nil {
			s.fail(err)
			return
		}
		if s.stopped() {
			return
		}
	}
}

func (s *Supervisor) stopped() bool {
	select {
	case <-s.quit:
		return true
	default:
		return false
	}
}

func (s *Supervisor) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failures = append(s.failures, err)
}

// listen takes what the program tells.
func (s *Supervisor) listen() {
	b, oob := make([]byte, 4096), make([]byte, unix.CmsgSpace(4*16))
	for {
		n, oobn, _, _, err := s.socket.ReadMsgUnix(b, oob)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			err = s.take(string(b[:n]), oob[:oobn])
		}
		if err != nil {
			s.fail(err)
		}
	}
}

// take takes one message and its files.
func (s *Supervisor) take(text string, oob []byte) error {
	files, err := filesOf(oob)
	if err != nil {
		return err
	}
	said := map[string]string{}
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		said[key] = value
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if said["READY"] == "1" {
		select {
		case <-s.ready:
		default:
			close(s.ready)
		}
	}
	name := said["FDNAME"]
	if said["FDSTOREREMOVE"] == "1" {
		s.files = slices.DeleteFunc(s.files, func(f storedFile) bool {
			if f.name == name {
				f.file.Close()
			}
			return f.name == name
		})
	}
	for _, f := range files {
		if said["FDSTORE"] == "1" && len(s.files) < s.room && !s.has(f) {
			s.files = append([]storedFile{{name, f}}, s.files...) // the last one comes first, as in systemd
			continue
		}
		f.Close() // that of BARRIER=1, too: all before it is done
	}
	return nil
}

// has reports whether a file is in the store, under whatever name.
func (s *Supervisor) has(f *os.File) bool {
	const kcmpFile = 0
	pid := uintptr(os.Getpid())
	return slices.ContainsFunc(s.files, func(g storedFile) bool {
		differ, _, errno := unix.Syscall6(unix.SYS_KCMP, pid, pid, kcmpFile, f.Fd(), g.file.Fd(), 0)
		return errno == 0 && differ == 0
	})
}

func filesOf(oob []byte) (files []*os.File, err error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			return files, err
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "stored"))
		}
	}
	return files, err
}

// Files returns the names of what is in the store.
func (s *Supervisor) Files() (names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.files {
		names = append(names, f.name)
	}
	return names
}

// Put puts a file into the store, as another program might have.
func (s *Supervisor) Put(name string, f *os.File) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.files = append(s.files, storedFile{name, f})
}

// Runs returns how often the program was started, and a channel that is closed once the last one is ready.
func (s *Supervisor) Runs() (n int, ready <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.runs, s.ready
}

// Between has f called once the program has ended next, before it is started again.
func (s *Supervisor) Between(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.between = f
}

// Signal sends the program a signal and waits until it has ended. At once means without the delay, as systemctl
// restart does.
func (s *Supervisor) Signal(sig unix.Signal, atOnce bool) error {
	s.mu.Lock()
	s.hurry = atOnce
	cmd, ended := s.cmd, s.ended
	s.mu.Unlock()
	if err := cmd.Process.Signal(sig); err != nil {
		return err
	}
	<-ended
	return nil
}

// Stop kills the program for good, closes what is in the store, and returns what went wrong.
func (s *Supervisor) Stop() error {
	s.mu.Lock()
	close(s.quit)
	_ = s.cmd.Process.Kill() // it may have ended
	s.mu.Unlock()
	s.socket.Close()
	s.group.Wait()
	for _, f := range s.files {
		f.file.Close()
	}
	return errors.Join(s.failures...)
}
