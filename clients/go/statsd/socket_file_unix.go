//go:build unix

package statsd

import "syscall"

// socketFile identifies the file of a Unix socket, whatever its path; the zero value is none.
type socketFile struct{ device, inode uint64 }

// socketFileAt returns the socket file at a path, or none if something else or nothing is there.
func socketFileAt(path string) socketFile {
	var found syscall.Stat_t
	if err := syscall.Stat(path, &found); err != nil || found.Mode&syscall.S_IFMT != syscall.S_IFSOCK {
		return socketFile{}
	}
	return socketFile{uint64(found.Dev), found.Ino}
}
