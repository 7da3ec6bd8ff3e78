//go:build !linux || !(amd64 || arm64) || purego

package statsd

import "syscall"

// datagramBatch is unused: this build has no sendmmsg, so packets are written one by one.
type datagramBatch struct {
	calls   int
	refused bool
}

func (*datagramBatch) send(syscall.Conn, []*packet) (int, error) { return 0, nil }
