package etcdtest

import (
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// User is the name and the password of the user of Allow.
const User = "u"

// Allow sets up User, from now on the only one beside root, and returns what gives and takes its right to write.
func (e *Etcd) Allow(t *testing.T) (write func(may bool)) {
	t.Helper()
	ctx, end := t.Context(), clientv3.GetPrefixRangeEnd(e.Prefix)
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(e.Client.UserAdd(ctx, "root", "root"))
	must(e.Client.RoleAdd(ctx, "root"))
	must(e.Client.UserGrantRole(ctx, "root", "root"))
	must(e.Client.RoleAdd(ctx, "overlayd"))
	must(e.Client.RoleGrantPermission(ctx, "overlayd", e.Prefix, end, clientv3.PermissionType(clientv3.PermReadWrite)))
	must(e.Client.UserAdd(ctx, User, User))
	must(e.Client.UserGrantRole(ctx, User, "overlayd"))
	must(e.Client.AuthEnable(ctx))
	e.root = true
	e.reconnect(t)
	return func(may bool) {
		t.Helper()
		right := clientv3.PermissionType(clientv3.PermRead)
		if may {
			right = clientv3.PermissionType(clientv3.PermReadWrite)
		}
		must(e.Connect(t, "root").RoleGrantPermission(t.Context(), "overlayd", e.Prefix, end, right))
	}
}

// SetPassword gives User another password.
func (e *Etcd) SetPassword(t *testing.T, password string) {
	t.Helper()
	if _, err := e.Connect(t, "root").UserChangePassword(t.Context(), User, password); err != nil {
		t.Fatal(err)
	}
}

// Alarm raises an alarm of etcd, such as that its space is used up, or disarms it.
func Alarm(t *testing.T, c *clientv3.Client, action pb.AlarmRequest_AlarmAction, of pb.AlarmType) {
	t.Helper()
	st, err := c.Status(t.Context(), c.Endpoints()[0])
	if err != nil {
		t.Fatal(err)
	}
	alarm := &pb.AlarmRequest{Action: action, MemberID: st.Header.MemberId, Alarm: of}
	if _, err := pb.NewMaintenanceClient(c.ActiveConnection()).Alarm(t.Context(), alarm); err != nil {
		t.Fatal(err)
	}
}
