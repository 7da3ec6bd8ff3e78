package statsd

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"regexp"
	"strings"
	"sync"
	"syscall"
)

// hostCgroupNamespace is the inode the kernel gives the first cgroup namespace.
const hostCgroupNamespace = 0xEFFFFFFB

// detectContainerID returns what can be found out about the container of this process, which cannot change while it
// runs.
var detectContainerID = sync.OnceValue(func() string { return containerIDFrom(os.DirFS("/"), inHostCgroupNamespace()) })

func inHostCgroupNamespace() bool {
	inode, ok := inodeOf(os.DirFS("/"), "proc/self/ns/cgroup")
	return ok && inode == hostCgroupNamespace
}

func inodeOf(root fs.FS, name string) (uint64, bool) {
	info, err := fs.Stat(root, name)
	if err != nil {
		return 0, false
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return stat.Ino, true
}

// containerIDFrom looks at the places in their order: cgroup path, mount of the host name file, inode of the cgroup
// directory.
func containerIDFrom(root fs.FS, hostNamespace bool) string {
	cgroup, _ := fs.ReadFile(root, "proc/self/cgroup")
	if id := containerIDInCgroup(string(cgroup)); id != "" {
		return id
	}
	mounts, _ := fs.ReadFile(root, "proc/self/mountinfo")
	if id := containerIDInMounts(string(mounts)); id != "" {
		return id
	}
	if hostNamespace {
		// The path above would have had the id, and the inode would be that of the whole machine.
		return ""
	}
	return cgroupInode(root, string(cgroup))
}

// The three forms of container ids: UUIDs of Garden, 64 hexadecimal digits nearly everywhere, and tasks of ECS.
const idForms = `[0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}|[0-9a-f]{64}|[0-9a-f]{32}-\d+`

// containerIDInCgroup looks for an id at the end of a path in the text of /proc/self/cgroup.
func containerIDInCgroup(text string) string {
	pattern := regexp.MustCompile(`(` + idForms + `)(?:\.scope)?$`)
	for _, line := range strings.Split(text, "\n") {
		parts := strings.SplitN(line, ":", 3)
		if len(parts) != 3 {
			continue
		}
		if found := pattern.FindStringSubmatch(parts[2]); found != nil {
			return found[1]
		}
	}
	return ""
}

// containerIDInMounts looks for an id in the path a container's host name file is mounted from.
func containerIDInMounts(text string) string {
	if !strings.Contains(text, "hostname") {
		return ""
	}
	pattern := regexp.MustCompile(`.*/([^\s/]+)/(` + idForms + `)/\S*hostname`)
	for _, line := range strings.Split(text, "\n") {
		found := pattern.FindAllStringSubmatch(line, -1)
		if len(found) == 0 {
			continue
		}
		// The id of a pod's sandbox belongs to another container.
		if last := found[len(found)-1]; last[1] != "sandboxes" {
			return last[2]
		}
	}
	return ""
}

// cgroupInode names the cgroup directory of this process: the memory controller of version 1, or the one hierarchy of
// version 2.
func cgroupInode(root fs.FS, text string) string {
	paths := map[string]string{}
	for _, line := range strings.Split(text, "\n") {
		if parts := strings.Split(line, ":"); len(parts) == 3 {
			paths[parts[1]] = parts[2]
		}
	}
	for _, controller := range []string{"memory", ""} {
		p, ok := paths[controller]
		if !ok {
			continue
		}
		if inode, ok := inodeOf(root, path.Join("sys/fs/cgroup", controller, p)); ok {
			return fmt.Sprintf("in-%d", inode)
		}
	}
	return ""
}
