package statsd

import (
	"strings"
	"testing"
	"testing/fstest"
)

const (
	id64   = "8c046cb0b72cd4c99f51b5591cd5b095967f58ee003710a45280c28ee1a9c7fa"
	other  = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	idTask = "34dc0b5e626f2c5c4c5170e34b10e765-1234567890"
	idUUID = "de6a46e4-2d3a-4f39-9c2c-1c3f4d5e6f70"
)

func TestContainerIDInCgroup(t *testing.T) {
	for text, want := range map[string]string{
		"":          "",
		"garbage":   "",
		"0::/\n":    "",
		"1:cpu:/a/": "",
		"12:memory:/docker/" + id64 + "\n11:cpu:/docker/" + other:      id64,
		"1:name=systemd:/ecs/x/" + idTask:                              idTask,
		"1:name=systemd:/" + idUUID:                                    idUUID,
		"1:a:/kubepods/pod-x/cri-containerd-" + id64 + ".scope":        id64,
		"1:a:/docker/" + id64 + "/init":                                "",
		"3:b:/user.slice\n1:a:/system.slice/docker-" + id64 + ".scope": id64,
		"1:a:/x:y/" + id64:                                             id64,
	} {
		if got := containerIDInCgroup(text); got != want {
			t.Errorf("%q gives %q, not %q", text, got, want)
		}
	}
}

func TestContainerIDInMounts(t *testing.T) {
	line := func(path string) string {
		return "608 554 0:42 / / rw,relatime - overlay overlay rw\n619 608 254:1 " + path +
			" /etc/hostname rw,relatime - ext4 /dev/vda1 rw\n"
	}
	for text, want := range map[string]string{
		"": "",
		line("/var/lib/docker/containers/" + id64 + "/hostname"):                                     id64,
		line("/containerd/io.containerd.grpc.v1.cri/sandboxes/" + id64 + "/hostname"):                "",
		line("/var/lib/containers/" + other + "/userdata/containers/" + id64 + "/userdata/hostname"): id64,
		line("/var/lib/containers/" + id64 + "/resolv.conf"):                                         "",
		line("/tasks/" + idTask + "/hostname"):                                                       idTask,
	} {
		if got := containerIDInMounts(text); got != want {
			t.Errorf("%q gives %q, not %q", text, got, want)
		}
	}
}

func TestContainerIDFrom(t *testing.T) {
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
	mounts := "1 2 0:1 /containers/" + other + "/hostname /etc/hostname rw - ext4 x rw"
	for _, x := range []struct {
		name string
		root fstest.MapFS
		host bool
		want string
	}{
		{"nothing", fstest.MapFS{}, false, ""},
		{"cgroup before mounts", fstest.MapFS{"proc/self/cgroup": file("0::/" + id64),
			"proc/self/mountinfo": file(mounts)}, true, id64},
		{"mounts", fstest.MapFS{"proc/self/cgroup": file("0::/"), "proc/self/mountinfo": file(mounts)}, false, other},
	} {
		if got := containerIDFrom(x.root, x.host); got != x.want {
			t.Errorf("%s: %q, not %q", x.name, got, x.want)
		}
	}
	// The inode comes from a real file system.
	dir := shortDir(t)
	mustWrite(t, dir+"/proc/self/cgroup", "4:memory:/a\n0::/b\n")
	mustWrite(t, dir+"/sys/fs/cgroup/b/x", "")
	root := dirFS(dir)
	want, ok := inodeOf(root, "sys/fs/cgroup/b")
	if !ok {
		t.Fatal("no inode")
	}
	if got := containerIDFrom(root, false); got != "in-"+uitoa(want) {
		t.Errorf("version 2: %q, not in-%d", got, want)
	}
	if got := containerIDFrom(root, true); got != "" {
		t.Errorf("in the host's namespace: %q", got)
	}
	mustWrite(t, dir+"/sys/fs/cgroup/memory/a/x", "")
	want, _ = inodeOf(root, "sys/fs/cgroup/memory/a")
	if got := containerIDFrom(root, false); got != "in-"+uitoa(want) {
		t.Errorf("version 1: %q, not in-%d", got, want)
	}
}

// TestContainerIDsAreSettingsOfTheirClient: two clients of one process used to share the id of the first.
func TestContainerIDsAreSettingsOfTheirClient(t *testing.T) {
	a, ra := record(t, WithContainerID("one"))
	b, rb := record(t, WithContainerID("two"))
	c, rc := record(t)
	for _, x := range []*Client{a, b, c} {
		_ = x.Incr("n", nil, 1)
		x.Flush()
	}
	equalLines(t, append(append(ra.lines(), rb.lines()...), rc.lines()...), []string{"n:1|c|c:one", "n:1|c|c:two",
		"n:1|c"})
	d, rd := record(t, WithContainerID("three|x\n"), WithOriginDetection())
	_ = d.Incr("n", nil, 1)
	d.Flush()
	if l := rd.lines()[0]; !strings.HasPrefix(l, "n:1|c|c:three_x") {
		t.Errorf("line is %q", l)
	}
}
