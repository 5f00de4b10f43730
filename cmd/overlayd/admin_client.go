package main

import (
	"os"

	"github.com/spf13/pflag"

	"github.com/overlayd/overlayd/cmd/internal/admin"
	"github.com/overlayd/overlayd/cmd/internal/flags"
)

// registerAdmin adds the flags that say which daemon on this host a command asks.
func registerAdmin(f *pflag.FlagSet) {
	f.String("subnet-file", flags.DefaultSubnetFile, "subnet file of the daemon")
	f.String("subnet-dir", flags.DefaultSubnetDir, "directory of the subnet files of a daemon that serves several networks")
}

// adminClient returns a client of the daemon that these flags mean. If they do not say which of the two places, it is that
// one at which a daemon listens.
func adminClient(f *pflag.FlagSet) (*admin.Client, error) {
	file, dir := flags.Given(f, os.LookupEnv, "subnet-file"), flags.Given(f, os.LookupEnv, "subnet-dir")
	if err := flags.ApplyEnv(f, os.LookupEnv); err != nil {
		return nil, usageError{err}
	}
	subnetFile, subnetDir := f.Lookup("subnet-file").Value.String(), f.Lookup("subnet-dir").Value.String()
	switch {
	case subnetFile == "":
		return nil, usagef(`--subnet-file: "": want a path`)
	case subnetDir == "":
		return nil, usagef(`--subnet-dir: "": want a directory`)
	}
	one, several := admin.Path(subnetFile), admin.PathIn(subnetDir)
	if file == dir {
		file, dir = admin.Listens(one), admin.Listens(several)
	}
	switch {
	case file && dir:
		return nil, usagef("two daemons run: choose one by --subnet-file %s or --subnet-dir %s", subnetFile, subnetDir)
	case dir:
		return admin.NewClient(several), nil
	}
	return admin.NewClient(one), nil
}

// unknownPeer is the error of a peer that the daemon does not have. flag is what stood before the name.
func unknownPeer(flag, name string) error {
	return usagef("%s%q: the daemon knows no such peer: want a node's name, its subnet, its VTEP or an address in its subnet, as overlayd status -o wide lists them", flag, name)
}
