// Package bench measures the parts of overlayd that a packet meets, without root
// and without a network: go test -bench . ./bench. README.md says what each
// benchmark shows and how to read it. The package has no code of its own.
package bench
