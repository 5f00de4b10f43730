//go:build !manual

package main

import "github.com/spf13/cobra"

// moreCommands: see manual.go.
func moreCommands() []*cobra.Command { return nil }
