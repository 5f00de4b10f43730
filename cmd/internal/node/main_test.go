package node

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/cmd/internal/nodefile"
)

// The test binary is also another process that claims a subnet file, or drains.
const (
	asHolder  = "OVERLAYD_TEST_HOLD" // its value: the subnet file
	asDrainer = "OVERLAYD_TEST_DRAIN"
)

const inNamespace = "OVERLAYD_TEST_IN_NAMESPACE" // set: the tests run in a network namespace of their own

func TestMain(m *testing.M) {
	if file := os.Getenv(asHolder); file != "" {
		hold(file)
		os.Exit(0)
	}
	if file := os.Getenv(asDrainer); file != "" {
		_, err := Drain(context.Background(), Config{SubnetFile: file})
		fmt.Println(err)
		os.Exit(0)
	}
	if files := os.Getenv(asDrained); files != "" {
		holdUntilDrained(files)
		os.Exit(0)
	}
	if spec := os.Getenv(asDaemon); spec != "" {
		if err := runTestDaemon(spec); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if os.Getenv(inNamespace) == "" && os.Geteuid() == 0 {
		os.Exit(rerun())
	}
	os.Exit(m.Run())
}

// rerun runs the tests in a network namespace of their own, where daemons may change what they
// want to, with one link that can be an underlay.
func rerun() int {
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), inNamespace+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	runtime.LockOSThread() // its end would be the tests' too
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	err := cmd.Run()
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		return exit.ExitCode()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// hold claims a subnet file, reports that on standard output, and ends with standard input.
func hold(file string) {
	signal.Ignore(unix.SIGUSR1)
	_, err := nodefile.Claim(file)
	fmt.Println(os.Getpid(), err)
	bufio.NewReader(os.Stdin).ReadByte()
}
