package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/spf13/pflag"

	"github.com/overlayd/overlayd/cmd/internal/flags"
)

// block is a block of commands in a page for users. Its first line may say who runs it:
//
//	sh               TestDocumentedCommands, in the order of the page
//	sh test=TestX    another test, which does what the page tells; with its own name TestDocumentedCommands does so at last
//	sh needs=WORD    nobody: it needs another system. Programs that only ask something are run if this machine has them
type block struct {
	file        string
	test, needs string
	commands    []string // without what is for people
}

// needed are the reasons for which a block is not run.
var needed = []string{"systemd", "kubernetes", "docker", "k3s", "helm", "sources", "foreground", "etcdctl", "curl"}

// asking are those that are run if this machine has them.
var asking = []string{"etcdctl", "curl"}

// notCommands are words that follow the name of the program in its texts.
var notCommands = []string{"is", "ends", "masq", "forward"}

var fence = regexp.MustCompile("(?ms)^```sh([^\n]*)\n(.*?)^```$")

// page returns the blocks of a page, whose name is relative to the top of the module.
func page(t *testing.T, name string) (blocks []block) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../..", name))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range fence.FindAllStringSubmatch(string(text), -1) {
		b := block{file: name}
		for _, word := range strings.Fields(m[1]) {
			key, value, _ := strings.Cut(word, "=")
			switch key {
			case "test":
				b.test = value
			case "needs":
				b.needs = value
			default:
				t.Errorf("%s: a block says %q", name, word)
			}
		}
		for line := range strings.Lines(m[2]) {
			if command, _, _ := strings.Cut(line, " #"); strings.TrimSpace(command) != "" {
				b.commands = append(b.commands, strings.TrimSpace(command))
			}
		}
		blocks = append(blocks, b)
	}
	return blocks
}

// documented returns the commands that a page leaves to a test, in their order.
func documented(t *testing.T, name, test string) (commands []string) {
	t.Helper()
	for _, b := range page(t, name) {
		if b.test == test {
			commands = append(commands, b.commands...)
		}
	}
	return commands
}

// pages are those for users.
func pages(t *testing.T) []string {
	t.Helper()
	list, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(list) == 0 {
		t.Fatal(list, err)
	}
	for i := range list {
		list[i] = strings.TrimPrefix(list[i], "../../")
	}
	return append(list, "README.md", "SECURITY.md")
}

// TestDocumentedFlags: every command in the pages for users is one of the program, with flags and arguments that it takes, also those that
// are in the text. What no test runs says why.
func TestDocumentedFlags(t *testing.T) {
	t.Parallel()
	inline := regexp.MustCompile("`(overlayd [^`]+)`")
	ours := regexp.MustCompile(`^(?:sudo |docker run .* |kubectl .* -- /usr/bin/)?(overlayd .*)`)
	blocks, lines := 0, 0
	for _, name := range pages(t) {
		text, err := os.ReadFile(filepath.Join("../..", name))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range inline.FindAllStringSubmatch(string(text), -1) {
			if strings.ContainsAny(m[1], "[|…") || slices.Contains(notCommands, strings.Fields(m[1])[1]) { // not to be typed
				continue
			}
			lines++
			checkCommand(t, name, m[1])
		}
		for _, b := range page(t, name) {
			blocks++
			if b.needs != "" && !slices.Contains(needed, b.needs) {
				t.Errorf("%s: a block needs %q", name, b.needs)
			}
			if b.test != "" && !isTest(t, b.test) {
				t.Errorf("%s: there is no %s", name, b.test)
			}
			for _, c := range b.commands {
				if m := ours.FindStringSubmatch(c); m != nil {
					lines++
					checkCommand(t, name, m[1])
				}
			}
		}
	}
	if t.Logf("%d blocks, %d commands of overlayd", blocks, lines); blocks < 10 || lines < 50 {
		t.Errorf("%d blocks, %d commands: the pages are not read", blocks, lines)
	}
}

// isTest reports whether this package has a test of a name, with whatever tags.
func isTest(t *testing.T, name string) bool {
	t.Helper()
	files, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(files, func(f string) bool {
		text, err := os.ReadFile(f)
		return err == nil && strings.Contains(string(text), "\nfunc "+name+"(t *testing.T)")
	})
}

// checkCommand looks whether the program would take a command line, without running it.
func checkCommand(t *testing.T, file, line string) {
	t.Helper()
	line, _, _ = strings.Cut(line, " > ")
	line, _, _ = strings.Cut(line, " | ")
	root := newRootCommand()
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	args := flags.Normalize(root.Flags(), words(line)[1:])
	cmd, rest, err := root.Find(args)
	if err == nil {
		cmd.InitDefaultHelpFlag()
		err = cmd.ParseFlags(rest)
	}
	if err == nil && cmd.Args != nil {
		err = cmd.ValidateArgs(cmd.Flags().Args())
	}
	if err != nil && !errors.Is(err, pflag.ErrHelp) {
		t.Errorf("%s: %s: %v", file, line, err)
	}
}

// words splits a command line as a shell does that knows quotes and nothing else.
func words(line string) (all []string) {
	for _, m := range regexp.MustCompile(`(?:"[^"]*"|'[^']*'|\S)+`).FindAllString(line, -1) {
		all = append(all, strings.NewReplacer(`"`, "", "'", "").Replace(m))
	}
	return all
}

// TestDocumentedCommands runs what the pages tell to do on a host of a running overlay.
func TestDocumentedCommands(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, testNetwork)
	for i, h := range c.hosts { // they keep these, and none that the pages reserve
		text := fmt.Sprintf("FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=10.5.%d.1/24\n", i+1)
		if err := os.WriteFile(h.subnetFile, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	c.upPair([2]string{modeUserspace, modeKernel}, "--probe-interval=200ms", "--metrics-port=9799")
	h, peer := c.hosts[0], c.hosts[1]
	bin := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	capturePath, err := captureProgram()
	if err != nil {
		t.Fatal(err)
	}
	program := fmt.Sprintf("#!/bin/sh\n%s=1 exec %s \"$@\"\n", asOverlayd, self)
	syscall.ForkLock.RLock() // a child that another test starts meanwhile would have the file open, and it could not be run
	err = os.WriteFile(filepath.Join(bin, "overlayd"), []byte(program), 0o755)
	syscall.ForkLock.RUnlock()
	if err != nil {
		t.Fatal(err)
	}
	host1 := regexp.MustCompile(` host1\b( |$)`) // the peer of the pages; those of the test have one name, which is that of this machine
	run := func(b block, dir string) {
		for _, command := range b.commands {
			cmd := exec.Command("sh", "-euc", host1.ReplaceAllString(command, " "+peer.gateway().Masked().String()+"$1"))
			cmd.Dir = dir
			cmd.Env = append(os.Environ(), "PATH="+bin+":"+capturePath, "OVERLAYD_SUBNET_FILE="+h.subnetFile, "ETCDCTL_API=3", "ETCDCTL_ENDPOINTS="+c.url)
			if p := startCommand(t, h.NS, command, cmd); p.wait(patience) != 0 && !says(p, command) {
				t.Errorf("%s: %s: exit code %d:\n%s", b.file, command, p.wait(0), p.text())
			}
		}
	}
	var last []block
	for _, name := range pages(t) {
		dir := t.TempDir()
		for _, b := range page(t, name) {
			_, err := exec.LookPath(b.needs)
			switch {
			case b.test == t.Name():
				last = append(last, b)
			case b.test == "" && (b.needs == "" || slices.Contains(asking, b.needs) && err == nil):
				run(b, dir)
			}
		}
	}
	for _, b := range last {
		run(b, bin)
	}
	if code := h.daemon.wait(patience); code != 0 {
		t.Errorf("the daemon ended with %d", code)
	}
}

// says reports whether a command did what it is for, though it did not end with 0: to say that something is wrong.
func says(p *process, command string) bool {
	return p.cmd.ProcessState.ExitCode() == exitFailure && (strings.HasPrefix(command, "overlayd status") || strings.HasPrefix(command, "overlayd doctor")) &&
		!strings.HasPrefix(p.text(), "overlayd: ")
}
