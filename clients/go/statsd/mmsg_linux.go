//go:build linux && (amd64 || arm64) && !purego

package statsd

import (
	"os"
	"runtime"
	"syscall"
	"unsafe"
)

// sysSendmmsg is the number of a system call that package syscall, which is frozen, does not have.
var sysSendmmsg = map[string]uintptr{"amd64": 307, "arm64": 269}[runtime.GOARCH]

// datagramBatch sends several datagrams with one system call. The zero value is ready.
type datagramBatch struct {
	state *mmsgState
	// calls counts system calls, for tests.
	calls int
	// refused says that one of the packets just sent was refused, without an error.
	refused bool
}

type mmsgState struct {
	heads [batchMax]mmsghdr
	parts [batchMax]syscall.Iovec
	next  int
	end   int
	errno syscall.Errno
	calls int
	// stopped is set when the kernel has stopped between two packets, and refused when the reason is known.
	stopped, refused bool
	// write is a method value made once, because making it allocates.
	write func(fd uintptr) bool
	// raw belongs to conn; asking for it allocates.
	conn syscall.Conn
	raw  syscall.RawConn
}

// mmsghdr is struct mmsghdr of the kernel: a message and, after the call, how many bytes of it were sent.
type mmsghdr struct {
	head syscall.Msghdr
	sent uint32
	_    [4]byte
}

// send writes packets until one fails or the write deadline passes, and returns how many were written. When the kernel
// stops between two packets it does not say why, and there is no error. If the next packet then leaves at once, the
// reason was that an earlier one was refused.
func (d *datagramBatch) send(conn syscall.Conn, packets []*packet) (int, error) {
	if d.state == nil {
		d.state = &mmsgState{}
		d.state.write = d.state.sendTo
	}
	s := d.state
	d.refused = false
	if s.conn != conn {
		raw, err := conn.SyscallConn()
		if err != nil {
			return 0, err
		}
		s.conn, s.raw = conn, raw
	}
	s.next, s.end, s.errno = 0, min(len(packets), batchMax), 0
	s.stopped, s.refused = false, false
	for i, k := range packets[:s.end] {
		p := k.payload()
		s.parts[i].Base = &p[0]
		s.parts[i].SetLen(len(p))
		s.heads[i].head.Iov = &s.parts[i]
		s.heads[i].head.Iovlen = 1
	}
	err := s.raw.Write(s.write)
	d.calls += s.calls
	d.refused = s.refused
	s.calls = 0
	for i := range s.parts[:s.end] {
		s.parts[i].Base = nil
	}
	if err == nil && s.errno != 0 {
		err = os.NewSyscallError("sendmmsg", s.errno)
	}
	return s.next, err
}

// sendTo is called when the socket may take datagrams. It returns false to be called again then.
func (s *mmsgState) sendTo(fd uintptr) bool {
	for {
		count := s.end - s.next
		if s.stopped {
			count = 1
		}
		n, _, errno := syscall.Syscall6(sysSendmmsg, fd, uintptr(unsafe.Pointer(&s.heads[s.next])), uintptr(count),
			syscall.MSG_DONTWAIT|syscall.MSG_NOSIGNAL, 0, 0)
		s.calls++
		switch {
		case errno == syscall.EINTR:
		case errno == syscall.EAGAIN:
			return s.stopped
		case errno != 0:
			s.errno, s.refused = errno, s.stopped && isRefusal(errno)
			return true
		default:
			s.next += int(n)
			s.refused = s.stopped
			if s.stopped || int(n) == count {
				return true
			}
			s.stopped = true
		}
	}
}
