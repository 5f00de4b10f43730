package leftovers

import (
	"bufio"
	"fmt"
	"os"
	"testing"

	"github.com/overlayd/overlayd/cmd/internal/nodefile"
)

// asHolder has the test binary claim a subnet file as a daemon does; its value is the file.
const asHolder = "OVERLAYD_TEST_HOLD"

func TestMain(m *testing.M) {
	if file := os.Getenv(asHolder); file != "" {
		_, err := nodefile.Claim(file)
		fmt.Println(os.Getpid(), err)
		bufio.NewReader(os.Stdin).ReadByte()
		os.Exit(0)
	}
	os.Exit(m.Run())
}
