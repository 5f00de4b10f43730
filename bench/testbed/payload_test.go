package testbed

import (
	"bytes"
	"errors"
	"io"
	"os"
	"testing"
	"time"
)

// A receiver must notice each way in which a stream can differ.
func TestReceiveNoticesWhatDiffers(t *testing.T) {
	pattern := Pattern()
	var whole bytes.Buffer
	for int64(whole.Len()) < 3*pattern.period {
		whole.Write(pattern.block(int64(whole.Len())))
	}
	right := whole.Bytes()
	if got, err := pattern.Receive(bytes.NewReader(right)); err != nil || got.Bytes != int64(len(right)) {
		t.Fatalf("right stream: %d bytes, %v", got.Bytes, err)
	}
	flipped := bytes.Clone(right)
	flipped[2*pattern.period+5] ^= 1
	lost := append(bytes.Clone(right[:pattern.period]), right[pattern.period+1448:]...)
	doubled := append(bytes.Clone(right[:2896]), right[1448:]...)
	for name, wrong := range map[string][]byte{"flipped bit": flipped, "segment lost": lost, "segment doubled": doubled, "nothing": nil} {
		if _, err := pattern.Receive(bytes.NewReader(wrong)); err == nil {
			t.Errorf("%s: not noticed", name)
		}
	}
	if _, err := pattern.Receive(io.MultiReader(bytes.NewReader(right), errReader{})); !errors.Is(err, os.ErrClosed) {
		t.Errorf("error of the connection: got %v", err)
	}
	if got, err := Zeros().Receive(bytes.NewReader(right)); err != nil || got.Bytes != int64(len(right)) {
		t.Errorf("zeros are not verified, but: %d bytes, %v", got.Bytes, err)
	}
}

type errReader struct{}

func (errReader) Read([]byte) (int, error) { return 0, os.ErrClosed }

// What Send writes is what Receive verifies, whatever the sizes of the writes are.
func TestSendIsWhatReceiveVerifies(t *testing.T) {
	for _, payload := range []Payload{Pattern(), Zeros()} {
		var wire bytes.Buffer
		sent, err := payload.Send(shortWriter{&wire}, 20*time.Millisecond)
		if err != nil || sent == 0 {
			t.Fatalf("sent %d bytes, %v", sent, err)
		}
		if got, err := payload.Receive(&wire); err != nil || got.Bytes != sent {
			t.Errorf("received %d of %d bytes, %v", got.Bytes, sent, err)
		}
	}
}

type shortWriter struct{ w io.Writer }

func (s shortWriter) Write(b []byte) (int, error) { return s.w.Write(b[:len(b)-7]) }

func TestGbit(t *testing.T) {
	begin := time.Now()
	if got := (Received{Bytes: 250e6, First: begin, End: begin.Add(time.Second)}).Gbit(); got != 2 {
		t.Errorf("250 MB in a second are %f Gbit/s, want 2", got)
	}
}
