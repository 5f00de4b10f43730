package nodefile

import (
	"bufio"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
)

// The test binary is also another process that claims subnet files, or asks who has one.
const (
	asHolder = "OVERLAYD_TEST_HOLD" // its value: the subnet files, separated by colons
	asAsker  = "OVERLAYD_TEST_ASK"
)

func TestMain(m *testing.M) {
	if files := os.Getenv(asHolder); files != "" {
		hold(files)
		os.Exit(0)
	}
	if file := os.Getenv(asAsker); file != "" {
		pid, held, err := Holder(file)
		fmt.Println(pid, held, err)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// hold claims subnet files, reports that on standard output, and ends with standard input.
func hold(files string) {
	var err error
	for file := range strings.SplitSeq(files, ":") {
		_, cerr := Claim(file)
		err = errors.Join(err, cerr)
	}
	fmt.Println(os.Getpid(), err)
	bufio.NewReader(os.Stdin).ReadByte()
}

func prefixes(texts ...string) (all []netip.Prefix) {
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}
